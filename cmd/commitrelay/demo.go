package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox/internal/demo"
)

func demoCommand() *cobra.Command {
	var o demo.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the outbox at work, and count what arrives",
		Long: `Registers users in transactions that also insert an event, some of which roll back; relays
the events to a broker; receives them, and counts what was lost, invented, doubled or out of order.

Without flags it starts a temporary PostgreSQL from binaries found on this machine, and a NATS
JetStream in this process. Everything it makes is removed at the end, also on Ctrl-C.

It fails if an event was lost, invented or out of order.`,
		Example: `  commitrelay demo
  commitrelay demo --naive
  commitrelay demo --duration 5s --json
  commitrelay demo --database postgres://localhost/app --sink amqp://guest:guest@localhost`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usageError{err}
			}
			ctx, stop := signals(cmd.Context(), nil)
			defer stop()
			o.Output, o.Quiet, o.Version = cmd.ErrOrStderr(), asJSON, readBuild().Version
			result, err := demo.Run(ctx, o)
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			write := result.WriteTable
			if asJSON {
				write = result.WriteJSON
			}
			if err := write(cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			if err := result.Err(); err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Database, "database", "", "URL of a PostgreSQL to use, in schemas of the demo's own (default a temporary server)")
	f.StringVar(&o.Sink, "sink", "", "URL of a NATS (nats://), RabbitMQ (amqp://) or Kafka (kafka://) to use (default a NATS in this process)")
	f.DurationVar(&o.Duration, "duration", demo.DefaultDuration, "how long to write")
	f.DurationVar(&o.Wait, "wait", demo.DefaultWait, "how long to wait without a new arrival before the rest counts as lost")
	f.IntVar(&o.Rate, "rate", demo.DefaultRate, "committed events per second; 0: as many as possible")
	f.IntVar(&o.Writers, "writers", demo.DefaultWriters, "connections that write")
	f.IntVar(&o.Relays, "relays", 0, "relays to run, or copies of the poller (default 3)")
	f.BoolVar(&o.Naive, "naive", false, "run the tutorial's poller instead of commitrelay")
	f.BoolVar(&asJSON, "json", false, "print one JSON object and nothing else")
	return cmd
}
