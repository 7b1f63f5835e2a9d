package natssink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/commitrelay/outbox/sink/internal/dial"
	"github.com/nats-io/nats.go"
)

// conn is a connection and the calls of Publish that use it. It is never repaired: when it is
// lost, all calls end, and the next one makes a new one.
type conn struct {
	nc           *nats.Conn
	inbox        string        // acknowledgements arrive at INBOX.CALL.MESSAGE
	api          string        // the prefix of lookups
	down         chan struct{} // closed when the connection is lost
	mayNotLookUp atomic.Bool   // the account may not use JetStream's API

	mu     sync.Mutex
	raw    *dial.Conn
	cause  error // why it is lost; set before down is closed
	calls  map[uint64]*call
	nextID uint64
}

// call is one call of Publish, as the connection's callbacks see it.
type call struct {
	id   uint64
	wake chan struct{} // holds one element if there are events to take

	mu     sync.Mutex
	events []event
}

// event is an answer to message i, or, with i < 0, a subject that the server forbids.
type event struct {
	i      int
	answer *nats.Msg
	denied string
	err    error
}

func (c *call) add(e event) {
	c.mu.Lock()
	first := len(c.events) == 0
	c.events = append(c.events, e)
	c.mu.Unlock()
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// take swaps the events for an empty slice, so that two slices serve a whole call.
func (c *call) take(empty []event) []event {
	c.mu.Lock()
	defer c.mu.Unlock()
	events := c.events
	c.events = empty[:0]
	return events
}

// connect returns the connection in use, or makes one.
func (s *Sink) connect(ctx context.Context) (*conn, error) {
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("nats: connect to %s: %w", s.shown, context.Cause(ctx))
	}
	s.mu.Lock()
	c, closed := s.conn, s.closed
	ready := c != nil && !c.lost()
	if !closed && !ready {
		s.running.Add(1) // here, so that Close waits for it
	}
	s.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case ready:
		return c, nil
	}
	c, err := s.dial(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // however it showed
	}
	if err != nil {
		return nil, fmt.Errorf("nats: connect to %s: %w", s.shown, err)
	}
	s.mu.Lock()
	s.conn, closed = c, s.closed
	s.mu.Unlock()
	if closed { // Close came in between and did not see it
		c.lose(errClosed)
		return nil, errClosed
	}
	return c, nil
}

// dial makes a connection. The caller has added one to s.running, which is taken back when the
// connection has ended, or could not be made.
func (s *Sink) dial(ctx context.Context) (*conn, error) {
	opts, err := s.options()
	if err != nil {
		s.running.Done()
		return nil, err
	}
	c := &conn{
		down: make(chan struct{}), calls: make(map[uint64]*call),
		inbox: nats.NewInbox()[len(nats.InboxPrefix):], api: s.apiPrefix(),
	}
	c.inbox = s.cfg.InboxPrefix + "." + c.inbox + "."
	d := &dialer{ctx: ctx, sink: s, conn: c}
	opts = append(opts, nats.SetCustomDialer(d), nats.ErrorHandler(c.onError),
		nats.ClosedHandler(func(nc *nats.Conn) {
			c.lose(nc.LastError())
			s.running.Done()
		}))
	nc, err := nats.Connect(s.shown, opts...)
	if err != nil {
		s.running.Done() // nothing has been started: no handler will be called
	}
	if d.stop != nil && !d.stop() && err == nil {
		// The context has ended and taken the connection with it.
		err = context.Cause(ctx)
		nc.Close()
	}
	if err != nil {
		if errors.Is(err, nats.ErrNoServers) && d.err != nil {
			err = d.err // says what the library leaves out: which address, and why
		}
		return nil, err
	}
	c.nc = nc
	sub, err := nc.Subscribe(c.inbox+"*.*", c.onAck)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1) // as many as messages are in flight, at most
	}
	if errors.Is(err, nats.ErrBadSubscription) {
		err = nil // the server has refused it already, and onError is told why
	}
	if err != nil {
		c.lose(err)
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	return c, nil
}

// dialer makes the connections of one call of nats.Connect.
type dialer struct {
	ctx  context.Context
	sink *Sink
	conn *conn
	stop func() bool
	err  error // of all servers that could not be reached
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(_, address string) (net.Conn, error) {
	if d.stop != nil {
		d.stop()
	}
	c, err := dial.Dial(d.ctx, address, d.sink.cfg.ConnectTimeout, d.sink.cfg.AckTimeout)
	if err != nil {
		if d.err != nil {
			d.err = fmt.Errorf("%w; %w", d.err, err)
		} else {
			d.err = err
		}
		return nil, err
	}
	d.conn.mu.Lock()
	d.conn.raw = c
	d.conn.mu.Unlock()
	d.stop = context.AfterFunc(d.ctx, func() { c.GiveUp(context.Cause(d.ctx)) })
	return c, nil
}

// onAck is called by nats.go, from one goroutine, for each message to the inbox.
func (c *conn) onAck(m *nats.Msg) {
	id, index, ok := strings.Cut(strings.TrimPrefix(m.Subject, c.inbox), ".")
	if !ok {
		return
	}
	n, err := strconv.ParseUint(id, 36, 64)
	i, err2 := strconv.ParseUint(index, 36, 31)
	if err != nil || err2 != nil {
		return
	}
	c.mu.Lock()
	call := c.calls[n]
	c.mu.Unlock()
	if call != nil { // nil: the call has given up
		call.add(event{i: int(i), answer: m})
	}
}

// onError is called by nats.go for what the server says of its own accord.
func (c *conn) onError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		c.lose(err)
		return
	}
	_, quoted, ok := strings.Cut(err.Error(), "Permissions Violation for Publish to ")
	subject, errQuote := strconv.Unquote(quoted)
	if !ok || errQuote != nil {
		c.lose(fmt.Errorf("%w: the account needs the right to subscribe to %s> (or set an inbox prefix) and to publish with a reply subject", err, c.inbox))
		return
	}
	if strings.HasPrefix(subject, c.api) {
		c.mayNotLookUp.Store(true)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		call.add(event{i: -1, denied: subject, err: err})
	}
}

// begin registers a call, end takes it out.
func (c *conn) begin() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	call := &call{id: c.nextID, wake: make(chan struct{}, 1)}
	c.calls[call.id] = call
	return call
}

func (c *conn) end(call *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, call.id)
}

// lose declares the connection lost. The first cause counts.
func (c *conn) lose(err error) {
	if err == nil {
		err = nats.ErrConnectionClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	if c.raw != nil {
		if cause := c.raw.Cause(); cause != nil {
			err = cause
		}
		c.raw.GiveUp(err)
	}
	c.cause = fmt.Errorf("nats: connection lost: %w", err)
	close(c.down)
}

func (c *conn) lost() bool {
	select {
	case <-c.down:
		return true
	default:
		return false
	}
}

func (c *conn) lostCause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}
