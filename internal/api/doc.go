// Package api is the HTTP interface of the dispatcher: producers enqueue, people look,
// cancel and retry, monitors ask for health and metrics. It checks who asks and what
// the wire allows; what a request means is decided by those it calls: job.Decode, the
// intake, the store. The OpenAPI document is at /openapi.json.
//
// # Who may ask
//
// Bearer tokens are configured by their hash, each with a name and a role. A producer
// enqueues, sees, cancels and retries what it enqueued itself, and has to do with the
// schedules of its tenants; a reporter reads everything and changes nothing; an operator
// may do all. Without tokens everyone who can reach the server is an operator: then it
// listens on loopback only ([CheckListen]) and answers only requests addressed to a
// loopback name, so that no web page can reach it by a name of its own. /healthz and
// /readyz are open.
//
// # What an answer says
//
// Every failure is a problem document (RFC 9457) whose type names the kind, from one
// table (problems.go). What a request got wrong is listed by field. Causes that are not
// for the caller go to the log.
package api
