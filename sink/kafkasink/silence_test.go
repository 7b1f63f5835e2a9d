package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// Brokers that accept connections and never answer: however long that lasts, memory, goroutines and
// connections do not grow, and all is delivered after it. (Not in parallel: it counts what is there.)
func TestMemoryWhileTheBrokerIsSilent(t *testing.T) {
	const lanes, perBatch = 8, 250
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 4)
	px := newProxy(t, b.addr)
	s := open(t, Config{URL: brokerURL(t), AckTimeout: 2 * time.Second})
	through(s, px)
	batches := make([][]relay.Message, lanes)
	for lane := range batches {
		for range perBatch {
			m := message(topic)
			m.Event.Payload = make([]byte, 4000)
			batches[lane] = append(batches[lane], m)
		}
	}
	round := func(published bool) {
		t.Helper()
		errs := make([]error, lanes)
		var running sync.WaitGroup
		for lane, batch := range batches {
			running.Go(func() { errs[lane] = s.Publish(t.Context(), batch) })
		}
		running.Wait()
		for lane, err := range errs {
			if published != (err == nil) {
				t.Fatalf("lane %d: %v, want it published: %v", lane, err, published)
			}
		}
	}
	usage := func() (goroutines int, heap uint64) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	round(true)
	px.PauseOpen(tcpproxy.Both)
	connect := s.connectTCP
	silent := silence(t)
	s.connectTCP = func() func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, silent)
		}
	}
	s.cfg.AckTimeout, s.cfg.ConnectTimeout = 100*time.Millisecond, 100*time.Millisecond // they add up
	round(false)                                                                        // connections that were good
	goroutines, heap := usage()
	for range 20 {
		round(false) // new connections
	}
	testwait.UntilNil(t, "memory and goroutines level off", func() error {
		g, h := usage()
		if len(s.all) > 0 || g > goroutines+lanes || h > heap+8<<20 {
			return fmt.Errorf("%d clients, %d goroutines and %d MiB, after the first round %d goroutines and %d MiB", len(s.all), g, h>>20, goroutines, heap>>20)
		}
		return nil
	})
	s.cfg.AckTimeout, s.cfg.ConnectTimeout = 10*time.Second, 10*time.Second
	s.connectTCP = connect
	round(true)
}

// silence is an address where connections are accepted, by the backlog, and nothing is said.
func silence(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// Whatever the address, the defaults tell what is wrong within 15 seconds, also of many brokers.
func TestConnectingIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	list := "kafka://b0"
	for i := range 20 {
		s := open(t, Config{URL: list})
		if d := s.connectLimit(); d > 15*time.Second {
			t.Errorf("%d brokers: an attempt to connect takes up to %v", i+1, d)
		}
		list += fmt.Sprint(",b", i+1)
	}
}

// Brokers that say nothing hide one that does only for a while.
func TestOneOfManyBrokersAnswers(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	batch := []relay.Message{message(b.topic("", 1))}
	brokers := []string{"kafka://" + b.addr}
	for range 4 {
		brokers = append(brokers, silence(t))
	}
	s := open(t, Config{URL: strings.Join(brokers, ","), ConnectTimeout: 250 * time.Millisecond})
	testwait.UntilNil(t, "published", func() error {
		err := s.Publish(t.Context(), batch)
		var e *relay.BatchError
		if err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
		return err
	})
}
