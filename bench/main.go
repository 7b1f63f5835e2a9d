// Bench measures commitrelay against what it could do at best, and against what people use instead.
//
// It needs the servers of scripts/services on this machine, and says nothing that it has not just measured. Every
// verb compares things that ran in turns within one run: the ratios are what counts, for rates are those of the
// machine. Run it from this folder:
//
//	eval "$(../scripts/services env)" && go run . drain --sink nats
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

func execute(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure commitrelay, and what it is compared with",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(limitCommand(), drainCommand(), latencyCommand(), insertCommand(), xminCommand(), idleCommand(), rivalsCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// options are the flags that all verbs have.
type options struct {
	runs int
	json bool
	shape
	log io.Writer // progress
}

// command makes a verb. Its result is the medians of what run returned, figure by figure; what run compares
// must therefore happen within one run.
func command[T any](o *options, use, short, long string, run func(ctx context.Context, s *server, n int) (T, error)) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.NoArgs}
	f := cmd.Flags()
	f.IntVar(&o.runs, "runs", 3, "how often to measure; medians are reported")
	f.BoolVar(&o.json, "json", false, "print one JSON object and nothing else")
	f.IntVar(&o.keys, "keys", 10_000, "different keys")
	f.IntVar(&o.perKey, "per-key", 1, "events per transaction, all of one key")
	f.Float64Var(&o.hot, "hot", 0, "the share of all events that one more key has, as 0.1")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.log = cmd.ErrOrStderr()
		if err := o.validate(); err != nil {
			return err
		}
		if o.runs < 1 {
			return fmt.Errorf("--runs %d: want at least one", o.runs)
		}
		s, err := connect(cmd.Context())
		if err != nil {
			return err
		}
		defer s.close()
		fmt.Fprintln(o.log, s)
		results := make([]T, 0, o.runs)
		for n := range o.runs {
			result, err := run(cmd.Context(), s, n)
			if err != nil {
				return fmt.Errorf("%s, run %d: %w", cmd.Name(), n+1, err)
			}
			fmt.Fprintf(o.log, "run %d of %d: %s\n", n+1, o.runs, brief(result))
			results = append(results, result)
		}
		return report(cmd.OutOrStdout(), median(results), o.json)
	}
	return cmd
}
