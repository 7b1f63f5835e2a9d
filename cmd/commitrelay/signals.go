package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// exitSignal is the exit code of a process that a second signal ended.
const exitSignal = 130

// signals returns a context that ends at the first SIGINT or SIGTERM, so that what is in flight
// can be finished. The second ends the process at once.
func signals(parent context.Context, log *slog.Logger) (context.Context, func()) {
	if parent == nil {
		parent = context.Background()
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(parent)
	got := make(chan os.Signal, 2)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-got:
				if n > 0 {
					log.Error("second signal, ending at once", "signal", s.String())
					os.Exit(exitSignal)
				}
				log.Info("stopping", "signal", s.String())
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		close(done)
		<-ended
		cancel()
	}
}
