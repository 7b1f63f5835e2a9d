package dial

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Conn is a connection whose writes never hang: a broker that does not read, be it for want of
// memory or because it is gone, is given up after the write timeout. Without that a client
// library blocks in its write with its locks held, and nothing it promises of contexts helps.
type Conn struct {
	net.Conn
	timeout time.Duration

	mu      sync.Mutex
	writing int
	cause   error // why it was given up; nil as long as it was not
}

// Dial connects to address, at latest until ctx ends. The connection stays when ctx ends later.
func Dial(ctx context.Context, address string, dialTimeout, writeTimeout time.Duration) (*Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err // names the address
	}
	return &Conn{Conn: c, timeout: writeTimeout}, nil
}

// Write writes all of p, or fails within the write timeout, or when Hurry cuts it short.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writing++
	err := c.Conn.SetWriteDeadline(time.Now().Add(c.timeout))
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing--
	if err != nil && c.cause == nil {
		c.cause = fmt.Errorf("write: %w", err)
	}
	return n, err
}

// SetWriteDeadline does nothing: Write has its own.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the deadline of reads only: writes have their own.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Hurry gives a write that is under way a last grace. It leaves an idle connection alone, so
// that one caller who is out of time takes the connection from the others only if it is stuck.
func (c *Conn) Hurry(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing > 0 {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(grace)) // fails on a closed connection only
	}
}

// GiveUp closes the connection, and remembers why unless a reason is known already.
func (c *Conn) GiveUp(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	_ = c.Close()
}

// Cause is why the connection broke on our side, or nil.
func (c *Conn) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}
