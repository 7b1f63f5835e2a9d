package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/commitrelay/outbox/relay"
)

// healthServer answers /livez and /readyz. Both show the relay's health; /livez says 200 as long
// as the process answers, /readyz only while every subscription makes progress.
type healthServer struct {
	listener net.Listener
	server   *http.Server
	done     chan struct{}
}

// listen takes the address, so that one that is in use shows at the start.
func listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("http: %w: choose another address with --http", err)
	}
	return l, nil
}

func serveHealth(l net.Listener, health func() relay.Health, log *slog.Logger) *healthServer {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeHealth(w, http.StatusOK, health())
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := health()
		status := http.StatusServiceUnavailable
		if h.Ready {
			status = http.StatusOK
		}
		writeHealth(w, status, h)
	})
	s := &healthServer{listener: l, done: make(chan struct{}), server: &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	go func() {
		defer close(s.done)
		if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("http server ended", "error", err)
		}
	}()
	log.Info("health is served", "address", l.Addr().String(), "paths", "/livez /readyz")
	return s
}

func writeHealth(w http.ResponseWriter, status int, h relay.Health) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(h) // whoever asked has gone
}

func (s *healthServer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		_ = s.server.Close()
	}
	<-s.done
}
