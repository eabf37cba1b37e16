package pi

import (
	"strconv"
	"strings"
)

// The keys of the status lines by which our extension speaks.
const (
	statusVersion = "turnpike.version"
	statusLimit   = "turnpike.limit"
	statusTurns   = "turnpike.turns"
)

// The turn_end handlers run before the next request is made, which is what makes the
// limit exact. Turns without a tool call end by themselves.
//
// An answer's headers are taken where node's own HTTP client tells of them: the CLI's
// hook for them is not called for answers that refuse.
const source = `import { subscribe } from "node:diagnostics_channel";
import { VERSION } from "@earendil-works/pi-coding-agent";

export default function (pi) {
	const most = MOST; // turns; 0 is no limit
	let turns = 0;
	pi.on("session_start", (_, ctx) => {
		ctx.ui.setStatus("` + statusVersion + `", VERSION);
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
func extension(maxTurns int) []byte {
	return []byte(strings.Replace(source, "MOST", strconv.Itoa(maxTurns), 1))
}
