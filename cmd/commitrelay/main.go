// Commitrelay moves committed events from an outbox in PostgreSQL to a message broker.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox/internal/nearest"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // a command line or a configuration that cannot be meant
)

// usageError is a mistake of whoever started us.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// shownError has told its story already: it only sets the exit code.
type shownError struct{}

func (shownError) Error() string { return "failed" }

func execute(args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	code := exitFailure
	if _, ok := errors.AsType[usageError](err); ok {
		code = exitUsage
	}
	if !errors.As(err, new(shownError)) {
		printError(stderr, err)
	}
	return code
}

// printError writes each fault on a line of its own.
func printError(w io.Writer, err error) {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	if len(lines) == 1 {
		fmt.Fprintln(w, "commitrelay:", lines[0])
		return
	}
	for _, l := range lines {
		fmt.Fprintln(w, l)
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "commitrelay",
		Short: "Move committed events from PostgreSQL to a message broker",
		Long: `commitrelay moves the events that applications commit to an outbox table in
PostgreSQL to Kafka, NATS JetStream, RabbitMQ or standard output: none lost,
none invented, in order per key.`,
		Args:          suggestCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(suggestFlag)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), checkCommand(), migrateCommand(), statusCommand(), subscriptionsCommand(), demoCommand(), versionCommand())
	return root
}

// suggestCommand refuses what is no verb, and names the one that was meant.
func suggestCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg := fmt.Sprintf("unknown command %q for %s", args[0], cmd.CommandPath())
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	if near := nearest.Name(args[0], names); near != "" {
		msg += fmt.Sprintf(", did you mean %q?", near)
	}
	return usagef("%s\nrun `%s --help` for the commands", msg, cmd.CommandPath())
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, got %q\nrun `%s --help` for its flags", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

// suggestFlag names the flag that was meant.
func suggestFlag(cmd *cobra.Command, err error) error {
	msg := err.Error()
	var unknown interface{ GetSpecifiedName() string }
	if errors.As(err, &unknown) {
		known := flagNames(cmd)
		if near := nearest.Name(unknown.GetSpecifiedName(), known); near != "" && !slices.Contains(known, unknown.GetSpecifiedName()) {
			msg += ", did you mean --" + near + "?"
		}
	}
	return usagef("%s\nrun `%s --help` for its flags", msg, cmd.CommandPath())
}
