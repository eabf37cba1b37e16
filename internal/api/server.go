package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"turnpike/internal/job"
)

// Config is what the server needs. Log is required, as are the interfaces.
type Config struct {
	Intake      Intake
	Jobs        Jobs
	Control     Control
	Schedules   Schedules
	Transcripts Transcripts
	Patches     Patches

	Tokens  []Token // none: loopback only, see CheckListen
	Checks  []Check // of readiness
	Version string
	// Metrics is served at /metrics, and counts requests. nil serves none.
	Metrics *prometheus.Registry
	// MaxBody bounds a batch; default 16 MiB.
	MaxBody int64
	Log     *slog.Logger
}

// Check is one part that readiness depends on.
type Check struct {
	Name string
	// Advisory parts are shown and do not make the server unready: jobs are accepted
	// while NATS is away.
	Advisory bool
	Ask      func(context.Context) error
}

// Server answers HTTP requests.
type Server struct {
	intake      Intake
	jobs        Jobs
	control     Control
	schedules   Schedules
	transcripts Transcripts
	patches     Patches
	bearers     bearers
	checks      []Check
	maxBody     int64
	log         *slog.Logger
	requests    *prometheus.CounterVec // nil counts none

	mux     *http.ServeMux
	handler http.Handler
	// stopping ends with the server: transcripts that are being followed do too.
	stopping context.Context //nolint:containedctx // the server's life, not a call's
	stop     context.CancelFunc
}

// New returns a server, or what is wrong with its settings.
func New(cfg Config) (*Server, error) {
	known, err := newBearers(cfg.Tokens)
	if err != nil {
		return nil, err
	}
	s := &Server{
		intake: cfg.Intake, jobs: cfg.Jobs, control: cfg.Control, schedules: cfg.Schedules, transcripts: cfg.Transcripts, patches: cfg.Patches,
		bearers: known, checks: cfg.Checks, maxBody: cfg.MaxBody, log: cfg.Log, mux: http.NewServeMux(),
	}
	if s.maxBody <= 0 {
		s.maxBody = 16 << 20
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.routes(cfg.Version)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.mux.HandleFunc("GET /readyz", s.ready)
	if cfg.Metrics != nil {
		s.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "turnpike_http_requests_total", Help: "HTTP requests, by route and status."}, []string{"route", "status"})
		if err := cfg.Metrics.Register(s.requests); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
		s.mux.Handle("GET /metrics", s.only(promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{}), Operator, Reporter))
	}
	s.handler = s.count(s.guard(http.HandlerFunc(s.route)))
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Serve answers requests on l until ctx ends, then lets those under way finish, for a
// while.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	const grace = 10 * time.Second
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      time.Minute, // a followed transcript extends its own
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	server.RegisterOnShutdown(s.stop)
	var ending sync.WaitGroup
	served := make(chan struct{})
	var stopped error
	ending.Go(func() {
		select {
		case <-served:
			return
		case <-ctx.Done():
		}
		// ctx is over; what is under way gets its own time.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if stopped = server.Shutdown(last); stopped != nil {
			stopped = errors.Join(stopped, server.Close())
		}
	})
	err := server.Serve(l)
	close(served)
	ending.Wait()
	s.stop()
	if errors.Is(err, http.ErrServerClosed) {
		err = stopped
	}
	if err != nil {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// guard refuses who is not known and what no honest client sends, before anything of
// the request is read.
func (s *Server) guard(next http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if len(s.bearers) == 0 && !addressed(r) {
			s.write(w, errElsewhere)
			return
		}
		if err := sameOrigin.Check(r); err != nil {
			s.write(w, errCrossOrigin)
			return
		}
		if !open[r.URL.Path] {
			if _, err := s.bearers.who(r.Header.Get("Authorization")); err != nil {
				s.write(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// open are the paths that need no token.
var open = map[string]bool{"/healthz": true, "/readyz": true, "/openapi.json": true, "/openapi.yaml": true}

// only lets some roles pass.
func (s *Server) only(next http.Handler, roles ...Role) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := s.bearers.authorize(r.Header.Get("Authorization"), roles...); err != nil {
			s.write(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// route answers what the mux does not know with a problem, too.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	handler, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	refused := &status{ResponseWriter: silent{w.Header()}}
	handler.ServeHTTP(refused, r)
	writeProblem(w, &huma.ErrorModel{
		Type: "about:blank", Title: http.StatusText(refused.code), Status: refused.code,
		Detail: r.Method + " " + r.URL.Path + " is not part of this API; see /openapi.json",
	})
}

// count counts requests by what the mux made of them.
func (s *Server) count(next http.Handler) http.Handler {
	if s.requests == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &status{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(seen, r)
		route := r.Pattern
		if route == "" {
			route = "none"
		}
		s.requests.WithLabelValues(route, strconv.Itoa(seen.code)).Inc()
	})
}

// status remembers the code of an answer.
type status struct {
	http.ResponseWriter
	code int
}

func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController through.
func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// silent keeps headers and drops the rest.
type silent struct{ header http.Header }

func (s silent) Header() http.Header         { return s.header }
func (s silent) Write(p []byte) (int, error) { return len(p), nil }
func (s silent) WriteHeader(int)             {}

// ready says whether every part that is needed answers.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
	defer cancel()
	answers := make([]string, len(s.checks))
	var all sync.WaitGroup
	for i, c := range s.checks {
		all.Go(func() { answers[i] = standing(c.Ask(ctx)) })
	}
	all.Wait()
	body := struct {
		Ready  bool              `json:"ready"`
		Checks map[string]string `json:"checks"`
	}{Ready: true, Checks: make(map[string]string)}
	for i, c := range s.checks {
		body.Checks[c.Name] = answers[i]
		if answers[i] != "ok" && !c.Advisory {
			body.Ready = false
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if !body.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		s.log.Debug("answer readiness", "err", err)
	}
}

// standing is what anyone may read of a check.
func standing(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, job.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "unavailable"
	default:
		return "failing"
	}
}

// config is huma's, without what would load scripts or rewrite answers.
func config(version string) huma.Config {
	if version == "" {
		version = "dev"
	}
	c := huma.DefaultConfig("Turnpike", version)
	c.DocsPath, c.SchemasPath, c.CreateHooks = "", "", nil
	c.RejectUnknownQueryParameters = true
	c.Transformers = []huma.Transformer{typed}
	c.Info.Description = "A durable queue and worker pool for coding-agent turns."
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer"}}
	c.Security = []map[string][]string{{"bearer": {}}}
	return c
}

func (s *Server) routes(version string) {
	api := humago.New(s.mux, config(version))
	aliases(api.OpenAPI().Components.Schemas)
	s.registerJobs(api)
	s.registerTranscript(api)
	s.registerPatch(api)
	s.registerSchedules(api)
}
