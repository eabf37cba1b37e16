package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
)

// EnvPrefix begins the name of every variable that is a setting:
// TURNPIKE_LOG_LEVEL is --log-level.
const EnvPrefix = "TURNPIKE_"

// Settings are a command's flags, with what the environment and a settings file
// say of them. A flag that was typed wins over the environment, the environment
// over the file, the file over the default.
type Settings struct{ *koanf.Koanf }

// allSecrets are the settings without a flag of any command.
var allSecrets = []string{"database-url", "nats-url", "nats-password", "token"}

// anyCommands says whether a command of the program has a flag of that name.
func anyCommands(cmd *cobra.Command, name string) bool {
	return cmd.Flags().Lookup(name) != nil || slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return anyCommands(c, name) })
}

// LoadSettings reads what stands for cmd's flags and for the secrets, which have
// no flag. A key of the file that is neither is refused.
func LoadSettings(cmd *cobra.Command, secrets ...string) (*Settings, error) {
	mine := func(key string) bool { return cmd.Flags().Lookup(key) != nil || slices.Contains(secrets, key) }
	k := koanf.New("/")
	path := os.Getenv(EnvPrefix + "CONFIG")
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		path = f.Value.String()
	}
	if path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			return nil, Usagef("settings file %s: %w", path, err)
		}
		for _, key := range k.Keys() {
			switch {
			case mine(key):
			case anyCommands(cmd.Root(), key), slices.Contains(allSecrets, key):
				k.Delete(key) // one file serves every command of a program
			default:
				return nil, Usagef("settings file %s: unknown setting %q; a setting is named as its flag, without the dashes in front", path, key)
			}
		}
	}
	fromEnv := env.Provider("/", env.Opt{Prefix: EnvPrefix, TransformFunc: func(name, value string) (string, any) {
		key := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, EnvPrefix)), "_", "-")
		if !mine(key) {
			return "", nil // another program's, or a turn's
		}
		if f := cmd.Flags().Lookup(key); f != nil && strings.HasSuffix(f.Value.Type(), "Slice") {
			return key, strings.Split(value, ",")
		}
		return key, value
	}})
	if err := k.Load(fromEnv, nil); err != nil {
		return nil, fmt.Errorf("settings from the environment: %w", err)
	}
	if err := k.Load(posflag.Provider(cmd.Flags(), "/", k), nil); err != nil {
		return nil, fmt.Errorf("settings from flags: %w", err)
	}
	return &Settings{k}, nil
}
