package pi

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// The keys of the status lines by which our extension speaks.
const (
	statusVersion = "turnpike.version"
	statusLimit   = "turnpike.limit"
	statusTurns   = "turnpike.turns"
	statusMissing = "turnpike.missing"
)

// The turn_end handlers run before the next request is made, which is what makes the
// limit exact. Turns without a tool call end by themselves.
//
// An answer's headers are taken where node's own HTTP client tells of them: the CLI's
// hook for them is not called for answers that refuse.
//
// A package that could not be fetched the CLI tells of on stderr, and goes on without. The
// prompt is kept from it then.
const source = `import { subscribe } from "node:diagnostics_channel";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { VERSION } from "@earendil-works/pi-coding-agent";

const isThere = ({ store, path }) => {
	const root = join(process.env.PI_CODING_AGENT_DIR, "tmp", "extensions", store);
	return existsSync(root) && readdirSync(root).some((directory) => existsSync(join(root, directory, path)));
};

export default function (pi) {
	const most = MOST; // turns; 0 is no limit
	const fetched = FETCHED;
	let turns = 0;
	pi.on("session_start", (_, ctx) => {
		ctx.ui.setStatus("` + statusVersion + `", VERSION);
		const missing = fetched.filter((one) => !isThere(one)).map(({ source }) => source);
		if (missing.length > 0) {
			ctx.ui.setStatus("` + statusMissing + `", missing.join(", "));
			pi.on("input", () => ({ action: "handled" }));
		}
		subscribe("undici:request:headers", ({ response }) => {
			if (response.statusCode !== 429) return;
			const headers = response.headers.map(String);
			const header = (name) => {
				const at = headers.findIndex((text, i) => i % 2 === 0 && text.toLowerCase() === name);
				return at < 0 ? "" : headers[at + 1];
			};
			ctx.ui.setStatus("` + statusLimit + `", JSON.stringify({
				retryAfter: header("retry-after"),
				reset: header("anthropic-ratelimit-unified-reset"),
			}));
		});
	});
	pi.on("turn_end", (event, ctx) => {
		if (most > 0 && event.toolResults.length > 0 && ++turns >= most) {
			ctx.ui.setStatus("` + statusTurns + `", "reached");
			ctx.abort();
		}
	});
}
`

// extension is the code that the CLI runs for the driver.
func extension(maxTurns int, fetches []fetched) ([]byte, error) {
	list, err := json.Marshal(append([]fetched{}, fetches...))
	if err != nil {
		return nil, fmt.Errorf("configure pi: %w", err)
	}
	return []byte(strings.NewReplacer("MOST", strconv.Itoa(maxTurns), "FETCHED", string(list)).Replace(source)), nil
}
