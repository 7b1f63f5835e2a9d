package rabbitsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commitrelay/outbox/sink/internal/dial"
	amqp "github.com/rabbitmq/amqp091-go"
)

// conn is a connection, its idle channels and what is known of the broker. It is never repaired:
// when it is lost, the next call of Publish makes a new one.
type conn struct {
	amqp    *amqp.Connection
	raw     *dial.Conn
	node    node
	timeout time.Duration // of an answer
	frame   int

	blocked  atomic.Pointer[string] // why the broker takes nothing at the moment, or nil
	maxBytes atomic.Int64           // the broker's max_message_size, once it is known
	running  sync.WaitGroup

	mu        sync.Mutex
	closing   bool
	idle      []*channel
	exchanges map[string]bool // known to exist
}

// connect returns the connection in use, or makes one.
func (s *Sink) connect(ctx context.Context) (*conn, error) {
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("rabbitmq: connect: %w", context.Cause(ctx))
	}
	s.mu.Lock()
	c, closed := s.conn, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case c != nil && !c.amqp.IsClosed() && c.raw.Cause() == nil:
		return c, nil
	case c != nil:
		c.close()
	}
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.conn, closed = c, s.closed
	s.mu.Unlock()
	if closed { // Close came in between and did not see it
		c.close()
		return nil, errClosed
	}
	return c, nil
}

// dial tries the nodes in turn, from the one used last.
func (s *Sink) dial(ctx context.Context) (*conn, error) {
	var errs error
	for range s.nodes {
		n := s.nodes[s.next]
		c, err := s.dialNode(ctx, n)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx) // however it showed
		}
		err = fmt.Errorf("rabbitmq: connect to %s: %w", n, err)
		if errs == nil {
			errs = err
		} else {
			errs = fmt.Errorf("%w; %w", errs, err)
		}
		s.next = (s.next + 1) % len(s.nodes)
	}
	return nil, errs
}

func (s *Sink) dialNode(ctx context.Context, n node) (*conn, error) {
	raw, err := dial.Dial(ctx, n.addr, s.cfg.ConnectTimeout, s.cfg.AckTimeout)
	if err != nil {
		return nil, err
	}
	silence := fmt.Errorf("the server does not speak AMQP, or not within %v", s.cfg.ConnectTimeout)
	timer := time.AfterFunc(s.cfg.ConnectTimeout, func() { raw.GiveUp(silence) })
	defer timer.Stop()
	stop := context.AfterFunc(ctx, func() { raw.GiveUp(context.Cause(ctx)) })
	c, err := s.open(ctx, n, raw)
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	stop()
	if err != nil {
		raw.Close()
		if cause := raw.Cause(); cause != nil {
			return nil, cause
		}
		var refused *amqp.Error
		switch {
		case !errors.As(err, &refused):
		case refused.Code == amqp.AccessRefused:
			return nil, fmt.Errorf("user or password is wrong: %w", err)
		case refused.Code == amqp.NotAllowed:
			return nil, fmt.Errorf("vhost %q does not exist, or the user has no right to it: %w", n.vhost, err)
		case errors.Is(err, amqp.ErrSASL), errors.Is(err, amqp.ErrClosed):
			return nil, fmt.Errorf("%w (is it a RabbitMQ port, and right with or without TLS?)", err)
		}
		return nil, err
	}
	return c, nil
}

func (s *Sink) open(ctx context.Context, n node, raw *dial.Conn) (*conn, error) {
	var wire net.Conn = raw
	if n.tls {
		config, err := dial.TLS(s.cfg.CAFile, s.cfg.CertFile, s.cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		config.ServerName = n.host
		client := tls.Client(raw, config)
		if err := client.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		wire = client
	}
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(s.cfg.Name)
	ac, err := amqp.Open(wire, amqp.Config{
		SASL:       []amqp.Authentication{&amqp.PlainAuth{Username: n.user, Password: n.pass}},
		Vhost:      n.vhost,
		Heartbeat:  10 * time.Second,
		Locale:     "en_US",
		FrameSize:  128 << 10,
		Properties: properties,
	})
	if err != nil {
		return nil, err
	}
	c := &conn{amqp: ac, raw: raw, node: n, timeout: s.cfg.AckTimeout, frame: ac.Config.FrameSize, exchanges: map[string]bool{}}
	c.maxBytes.Store(int64(s.cfg.MaxMessageBytes))
	// The library drops what nobody receives for five seconds: this goroutine does nothing else.
	blocked := ac.NotifyBlocked(make(chan amqp.Blocking, 8))
	c.running.Go(func() {
		for b := range blocked {
			if b.Active {
				c.blocked.Store(&b.Reason)
			} else {
				c.blocked.Store(nil)
			}
		}
	})
	return c, nil
}

// call runs an exchange with the broker that the library would wait for without end. When it
// takes too long, or ctx has ended and a short grace is over, the connection is given up.
func (c *conn) call(ctx context.Context, what string, f func() error) error {
	timer := time.AfterFunc(c.timeout, func() {
		c.raw.GiveUp(fmt.Errorf("%s: no answer for %v", what, c.timeout))
	})
	defer timer.Stop()
	stop := context.AfterFunc(ctx, func() { timer.Reset(stuckGrace) })
	defer stop()
	if err := f(); err != nil {
		if cause := c.raw.Cause(); cause != nil {
			err = cause
		}
		return fmt.Errorf("rabbitmq: %s: %w", what, err)
	}
	return nil
}

// lostCause says why the connection is lost.
func (c *conn) lostCause(err error) error {
	if cause := c.raw.Cause(); cause != nil {
		err = cause
	}
	return fmt.Errorf("rabbitmq: connection lost: %w", err)
}

// blockedCause is nil unless the broker has said that it takes nothing.
func (c *conn) blockedCause() error {
	if reason := c.blocked.Load(); reason != nil {
		return fmt.Errorf("rabbitmq: the broker takes no messages at the moment (connection.blocked: %s)", *reason)
	}
	return nil
}

// close ends the connection, in good manners if the broker answers, and waits for all that runs
// on it.
func (c *conn) close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	timer := time.AfterFunc(closeGrace, func() { c.raw.GiveUp(errClosed) })
	defer timer.Stop()
	if c.blocked.Load() != nil {
		c.raw.GiveUp(errClosed) // it will not read our farewell
	}
	_ = c.amqp.Close() // an error says that it is lost already
	c.raw.Close()
	c.running.Wait()
}

const (
	// stuckGrace is how long a write or a call may still take when its context has ended.
	stuckGrace = 250 * time.Millisecond
	closeGrace = time.Second
)
