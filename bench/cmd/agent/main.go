// Command agent stands in for an agent's CLI where a figure counts what is around it: a
// process that reads its prompt, prints the shortest stream of claude, and ends.
package main

import (
	"fmt"
	"io"
	"os"
)

const stream = `{"type":"system","subtype":"init","session_id":"6c5b1f0e-7d1c-4a2c-9f63-2f6e0c1d8a01","claude_code_version":"2.1.332"}
{"type":"result","subtype":"success","session_id":"6c5b1f0e-7d1c-4a2c-9f63-2f6e0c1d8a01","result":"Done.","num_turns":1,"total_cost_usd":0.01}
`

func main() {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
	fmt.Print(stream)
}
