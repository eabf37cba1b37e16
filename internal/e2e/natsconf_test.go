package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/queue"
)

var update = flag.Bool("update", false, "rewrite deploy/nats.conf from the queue's permissions")

// TestDeployedPermissions holds deploy/nats.conf to what the queue package says each
// role needs: the file is for servers that know nothing of Go.
func TestDeployedPermissions(t *testing.T) {
	const head = `# The NATS server of compose.yaml: JetStream, and one user for each role with no more than it needs.
# Made from queue.PermissionsOf by: go test ./internal/e2e -run TestDeployedPermissions -update

port: 4222
http: 127.0.0.1:8222
jetstream { store_dir: /data }
`
	var b strings.Builder
	b.WriteString(head + "\nauthorization {\n\tusers: [\n")
	for _, role := range queue.Roles() {
		p := queue.PermissionsOf(role)
		fmt.Fprintf(&b, "\t\t{\n\t\t\tuser: %s\n\t\t\tpassword: $TURNPIKE_NATS_%s_PASSWORD\n\t\t\tpermissions: {\n", role, strings.ToUpper(string(role)))
		for _, side := range []struct {
			name     string
			subjects []string
		}{{"publish", p.Publish}, {"subscribe", p.Subscribe}} {
			fmt.Fprintf(&b, "\t\t\t\t%s: {", side.name)
			if len(side.subjects) == 0 {
				b.WriteString(` deny: ">" }` + "\n") // an empty list would allow everything
				continue
			}
			b.WriteString(" allow: [\n")
			for _, s := range side.subjects {
				fmt.Fprintf(&b, "\t\t\t\t\t%q\n", s)
			}
			b.WriteString("\t\t\t\t] }\n")
		}
		b.WriteString("\t\t\t}\n\t\t}\n")
	}
	b.WriteString("\t]\n}\n")

	file := filepath.Join("..", "..", "deploy", "nats.conf")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("deploy/nats.conf is not what queue.PermissionsOf says; look at the change, then run with -update")
	}
}
