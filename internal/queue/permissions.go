package queue

import (
	"slices"
	"strings"

	"turnpike/internal/job"
)

// Role is one of the users a server should know.
type Role string

// The roles.
const (
	Producer   Role = "producer"   // enqueues by SQL and wakes the dispatcher
	Dispatcher Role = "dispatcher" // makes streams, publishes jobs, takes reports
	Worker     Role = "worker"     // takes jobs, sends transcripts and reports
	Reporter   Role = "reporter"   // reads transcripts
)

// Roles lists every role.
func Roles() []Role { return []Role{Producer, Dispatcher, Worker, Reporter} }

// Permissions are the subjects a user may publish and subscribe to. Nothing else is
// allowed; a list that is empty allows nothing.
type Permissions struct {
	Publish   []string
	Subscribe []string
}

// inbox is the prefix of a role's replies. Each role has its own, so that a worker
// cannot listen to what the dispatcher is told.
func inbox(r Role) string {
	if r == "" {
		return "_INBOX"
	}
	return "_INBOX_" + strings.ToUpper(string(r))
}

// PermissionsOf is what a role needs, for the server's configuration.
func PermissionsOf(r Role) Permissions {
	replies := inbox(r) + ".>"
	jobs := each(job.Placements(), jobsStream)
	switch r {
	case Producer:
		return Permissions{Publish: []string{wakeSubject}, Subscribe: []string{replies}}
	case Dispatcher:
		streams := append(slices.Clone(jobs), resultsStream, transcriptsStream, objectStream(bundlesBucket), objectStream(patchesBucket))
		p := Permissions{
			Publish: []string{
				wakeSubject, cancelRoot + "*", jobsRoot + "*.*.*.*",
				"$JS.API.CONSUMER.MSG.NEXT." + resultsStream + "." + resultsConsumer,
				"$JS.ACK." + resultsStream + ".>",
				"$JS.API.DIRECT.GET." + transcriptsStream,
				"$JS.API.DIRECT.GET." + objectStream(patchesBucket) + ".$O." + patchesBucket + ".M.>",
			},
			Subscribe: []string{replies, wakeSubject, transcriptRoot + "*.*"},
		}
		for _, s := range streams {
			p.Publish = append(p.Publish,
				"$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.CREATE."+s, "$JS.API.STREAM.UPDATE."+s,
				"$JS.API.CONSUMER.INFO."+s+".*", "$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.DELETE."+s+".*")
		}
		return p
	case Worker:
		p := Permissions{
			Publish:   []string{wakeSubject, transcriptRoot + "*.*", resultsRoot + "*.*"},
			Subscribe: []string{replies, cancelRoot + "*"},
		}
		for _, s := range jobs {
			p.Publish = append(p.Publish,
				"$JS.API.CONSUMER.INFO."+s+".*", "$JS.API.CONSUMER.MSG.NEXT."+s+".*", "$JS.ACK."+s+".>")
		}
		for _, bucket := range []string{bundlesBucket, patchesBucket} {
			s := objectStream(bucket)
			p.Publish = append(p.Publish, "$O."+bucket+".>", "$JS.API.STREAM.INFO."+s, "$JS.API.DIRECT.GET."+s+".$O."+bucket+".M.>",
				"$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.DELETE."+s+".*",
				"$JS.API.STREAM.PURGE."+s) // of the chunks of what was replaced
		}
		return p
	case Reporter:
		return Permissions{
			Publish:   []string{"$JS.API.STREAM.INFO." + transcriptsStream, "$JS.API.DIRECT.GET." + transcriptsStream},
			Subscribe: []string{replies, transcriptRoot + "*.*"},
		}
	default:
		return Permissions{}
	}
}

func each(l []string, f func(string) string) []string {
	out := make([]string, len(l))
	for i, s := range l {
		out[i] = f(s)
	}
	return out
}
