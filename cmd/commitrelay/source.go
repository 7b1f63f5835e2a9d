package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/commitrelay/outbox/internal/config"
)

// source is what the command line says of the configuration.
type source struct {
	file   string
	values map[string]*string // by flag
	cmd    *cobra.Command
}

// bind gives a command --config and the flags of settings whose key begins with one of keys;
// none: all.
func bind(cmd *cobra.Command, keys ...string) *source {
	s := &source{values: map[string]*string{}, cmd: cmd}
	cmd.Flags().StringVar(&s.file, "config", "", "YAML `file` of the configuration (or $"+config.FileVariable+")")
	for _, set := range config.Settings() {
		if wanted(set.Key, keys) {
			s.values[set.Flag] = cmd.Flags().String(set.Flag, "", set.Usage+" (or $"+set.Env+")")
		}
	}
	return s
}

func wanted(key string, keys []string) bool {
	for _, k := range keys {
		if strings.HasPrefix(key, k) {
			return true
		}
	}
	return len(keys) == 0
}

// load reads the configuration; its faults are faults of usage.
func (s *source) load(src config.Source) (config.Config, error) {
	src.File, src.Environ, src.Flags = s.file, os.Environ(), map[string]string{}
	for flag, v := range s.values {
		if s.cmd.Flags().Changed(flag) {
			src.Flags[flag] = *v
		}
	}
	cfg, err := config.Load(src)
	if err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}
