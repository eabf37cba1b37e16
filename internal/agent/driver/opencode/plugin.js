// What the driver of opencode cannot learn or keep from outside. The driver puts the
// turn's settings in front of this.
import { Database } from "bun:sqlite";
import { readFileSync, renameSync, writeFileSync } from "node:fs";

const say = (what) => process.stdout.write(JSON.stringify({ type: "turnpike", ...what }) + "\n");
const named = (list, tool) => list.some((name) => (name.endsWith("*") ? tool.startsWith(name.slice(0, -1)) : tool === name));
const helpers = ["compaction", "summary", "title"]; // agents whose requests are no steps

// The CLI imports what a workspace's .opencode directory or configuration names as
// plugins although it is told to read neither. It does so after this ran, and from here on
// it imports nothing from any disk.
Bun.plugin({
	name: "turnpike",
	setup(build) {
		build.onLoad({ filter: /^\/(?!\$bunfs\/)/ }, ({ path }) => {
			say({ kept: path });
			throw new Error(path + " is not the turn's to run");
		});
	},
});

// A conversation goes from one home to another as these rows of the CLI's database, in a
// file of their own. The database itself could bring along settings, such as an account
// whose configuration is fetched and believed.
const tables = { session: "id", message: "session_id", part: "session_id" };

const keep = (id) => {
	const db = new Database(settings.database, { readonly: true });
	const rows = {};
	for (const [table, key] of Object.entries(tables)) {
		rows[table] = db.query(`SELECT * FROM ${table} WHERE ${key} = ? ORDER BY id`).all(id);
	}
	db.close();
	writeFileSync(settings.conversation + ".new", JSON.stringify(rows));
	renameSync(settings.conversation + ".new", settings.conversation);
};

const recall = (id, own) => {
	const db = new Database(settings.database);
	const there = db.query("SELECT id FROM session WHERE id = ?").get(id); // in the home it began in
	const rows = there ? {} : JSON.parse(readFileSync(settings.conversation, "utf8"));
	db.transaction(() => {
		if (there) return;
		for (const [table, key] of Object.entries(tables)) {
			const columns = db.query(`PRAGMA table_info(${table})`).all().map(({ name }) => name);
			for (const row of rows[table]) {
				const whole = { ...row, [key]: id, ...(table === "session" ? own : {}) };
				const names = columns.filter((name) => name in whole);
				db.query(`INSERT INTO ${table} (${names.join(", ")}) VALUES (${names.map(() => "?").join(", ")})`).run(
					...names.map((name) => whole[name]),
				);
			}
		}
	})();
	db.close();
};

export const Turnpike = async ({ client, project, directory }) => {
	let root = ""; // the turn's own session; the others are of its subagents
	let next = 0;
	const kept = () => {
		const began = Date.now();
		try {
			if (root !== "") keep(root);
		} catch (error) {
			say({ lost: String(error) });
		}
		next = Date.now() + 20 * (Date.now() - began); // a long one takes its time
	};
	say({ hello: true });
	process.on("exit", (code) => {
		kept();
		say({ exit: { code } });
	});
	if (settings.resume !== "") {
		try {
			recall(settings.resume, { project_id: project.id, directory, permission: null, parent_id: null, workspace_id: null, share_url: null, revert: null });
		} catch (error) {
			say({ lost: String(error) });
		}
	}
	let stopped = false;
	const sessions = new Map();
	const session = (id) => {
		if (!sessions.has(id)) sessions.set(id, { steps: 0, again: 0, helped: 0, next: true, model: "", priced: false });
		return sessions.get(id);
	};
	const stop = (why, more) => {
		if (stopped) return;
		stopped = true;
		say({ stop: { why, ...more } });
		client.session.abort({ path: { id: root } }).catch(() => {});
	};
	const open = async (model) => {
		let version = "";
		let servers = {};
		try {
			version = (await client._client.get({ url: "/global/health" })).data.version;
		} catch {}
		try {
			servers = (await client.mcp.status()).data;
		} catch {}
		say({
			asking: {
				version,
				efforts: Object.keys(model.variants ?? {}),
				servers: Object.entries(servers ?? {}).map(([name, { status, error }]) => ({ name, status, error })),
			},
		});
	};

	return {
		event: async ({ event: { type, properties } }) => {
			if (type.startsWith("session.") && root === "" && properties.sessionID) {
				root = properties.sessionID;
				say({ session: root });
			}
			if (type === "session.status" && properties.status.type === "retry") {
				const { attempt, message, next } = properties.status;
				if (attempt > settings.retries || next - Date.now() > settings.patience) stop("provider", { message, next });
			}
			if (type !== "message.part.updated" || properties.part.type !== "step-finish") return;
			if (properties.part.sessionID === root) {
				if (Date.now() >= next) kept();
			} else {
				const { tokens, cost, sessionID } = properties.part;
				const { model, priced } = session(sessionID);
				say({ spent: { model, priced, tokens, cost } });
			}
		},
		"chat.params": async ({ sessionID, agent, model }) => {
			const s = session(sessionID);
			const name = model.providerID + "/" + model.id;
			if (s.model !== name) {
				s.model = name;
				const { input, output, cache } = model.cost ?? {};
				s.priced = [input, output, cache?.read, cache?.write].some((price) => price > 0);
				if (sessionID === root) say({ model: { name, priced: s.priced } });
			}
			if (sessionID === root && s.steps === 0 && s.helped === 0 && s.again === 0) await open(model);
			if (helpers.includes(agent)) {
				s.helped++;
				return;
			}
			if (s.next) {
				s.next = false;
				if (sessionID === root && settings.turns > 0 && s.steps >= settings.turns) stop("turns");
				s.steps++;
				s.again = s.helped = 0;
			} else if (++s.again > settings.retries + Math.min(s.helped, 3)) {
				// Neither a tool nor an answer came of it, so often.
				stop("loop");
			}
			if (stopped) throw new Error("the turn was stopped");
		},
		"tool.execute.before": async ({ tool, sessionID }) => {
			session(sessionID).next = true;
			if ((settings.granted && !named(settings.granted, tool)) || named(settings.denied, tool)) {
				throw new Error("the tool " + tool + " is not granted to this turn");
			}
			say({ tool });
		},
	};
};
