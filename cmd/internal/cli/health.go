package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"turnpike/internal/job"
)

// HealthCommand is the command by which a program on this machine is asked whether
// it is ready; health checks run it.
func HealthCommand(listen, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: short,
		Args:  Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := LoadSettings(cmd)
			if err != nil {
				return err
			}
			if err := askHealth(cmd.Context(), s.String("listen"), "/readyz"); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return nil
		},
	}
	cmd.Flags().String("listen", listen, "where it answers")
	return cmd
}

// askHealth asks a program on this machine how it is. addr is what it listens on;
// a wildcard address is asked over loopback.
func askHealth(ctx context.Context, addr, path string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return Usagef("listen address %q: want HOST:PORT", addr)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return Usagef("listen address %q: %w", addr, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s: %s", job.ErrUnavailable, res.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
