// What the driver of opencode cannot learn or keep from outside. The driver puts the
// turn's settings in front of this.
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

export const Turnpike = async ({ client }) => {
	say({ hello: true });
	process.on("exit", (code) => say({ exit: { code } }));

	let root = ""; // the turn's own session; the others are of its subagents
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
			if (type === "message.part.updated" && properties.part.type === "step-finish" && properties.part.sessionID !== root) {
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
