package tcpproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// way is a single direction as an index.
type way int

const (
	toServer way = iota
	toClient
)

func (w way) direction() Direction { return 1 << w }

// conn is a client's connection and the one to the target that it is forwarded to.
type conn struct {
	proxy          *Proxy
	client, server *net.TCPConn
	gates          [2]gate
	done           chan struct{} // closed by reset: wakes what waits at a gate
	once           sync.Once
}

func newConn(p *Proxy, client, server *net.TCPConn) *conn {
	return &conn{proxy: p, client: client, server: server, done: make(chan struct{})}
}

// run forwards both ways until both have ended, or one has failed.
func (c *conn) run() {
	var ways sync.WaitGroup
	ways.Go(func() { c.pump(toServer, c.server, c.client) })
	ways.Go(func() { c.pump(toClient, c.client, c.server) })
	ways.Wait()
	c.client.Close()
	c.server.Close()
}

// pump forwards one way. The end of src becomes the end of dst; any error resets both.
func (c *conn) pump(w way, dst, src *net.TCPConn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		// Held before the end is passed on, too: a FIN does not cross a black hole either.
		if !c.pass(w) {
			return
		}
		if n > 0 {
			allowed, cut := c.proxy.allow(w, n)
			if _, err := dst.Write(buf[:allowed]); err != nil {
				c.reset()
				return
			}
			if cut {
				c.proxy.Cut()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = dst.CloseWrite() // fails only if dst is gone, which its own pump sees
			return
		}
		if err != nil {
			c.reset()
			return
		}
	}
}

// pass waits for the delay and for the gate. It reports whether the connection still stands.
func (c *conn) pass(w way) bool {
	c.proxy.mu.Lock()
	delay := c.proxy.delay[w]
	c.proxy.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
			return false
		}
	}
	return c.gates[w].wait(c.done)
}

func (c *conn) pause(d Direction) {
	for w := range c.gates {
		if d&way(w).direction() != 0 {
			c.gates[w].shut()
		}
	}
}

func (c *conn) resume() {
	for w := range c.gates {
		c.gates[w].lift()
	}
}

// reset ends both connections with an RST.
func (c *conn) reset() {
	c.once.Do(func() {
		close(c.done)
		reset(c.client)
		reset(c.server)
	})
}

// reset closes a connection in such a way that the peer gets an RST, and unsent data is dropped.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// gate is open, or shut until it is lifted. The zero gate is open.
type gate struct {
	mu     sync.Mutex
	lifted chan struct{} // nil: open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lifted == nil {
		g.lifted = make(chan struct{})
	}
}

func (g *gate) lift() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lifted != nil {
		close(g.lifted)
		g.lifted = nil
	}
}

// wait returns true once the gate is open, and false if done is closed before that.
func (g *gate) wait(done <-chan struct{}) bool {
	for {
		g.mu.Lock()
		lifted := g.lifted
		g.mu.Unlock()
		if lifted == nil {
			return true
		}
		select {
		case <-lifted: // it may have been shut again: look once more
		case <-done:
			return false
		}
	}
}
