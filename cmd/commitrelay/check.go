package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox/internal/config"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration without connecting to anything",
		Long: `Check reads the configuration as run would: the file, the environment, the flags
and the files with secrets. It prints every fault with its place and exits with
2, or says ok. It connects to nothing.`,
		Example: "  commitrelay check --config relay.yaml",
		Args:    noArguments,
	}
	src := bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := src.load(config.Source{Delivery: true})
		if err != nil {
			return err
		}
		sinks, err := openSinks(cfg, cmd.OutOrStdout())
		if err != nil {
			return usageError{err}
		}
		sinks.close()
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "ok: %d sinks, %d subscriptions\n", len(cfg.Sinks), len(cfg.Subscriptions))
		return err
	}
	return cmd
}
