// Package tcpproxy is a TCP proxy that breaks connections on request: it stands between a client
// and a server in tests, and does to them what networks do.
//
//	proxy, err := tcpproxy.Listen("127.0.0.1:5432")
//	defer proxy.Close()
//	// give proxy.Addr() to the client, then
//	proxy.Cut()                        // every connection is reset
//	proxy.Pause(tcpproxy.ToClient)     // requests arrive, answers do not
//	proxy.Resume()
//
// It loses no byte of a connection that lives on: a paused direction is late, as behind a network
// that drops packets and then heals. Only a cut loses what was under way.
package tcpproxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is one of the two ways through the proxy, or both.
type Direction uint8

// The directions. They can be combined: Both is ToServer|ToClient.
const (
	ToServer Direction = 1 << iota // what the client sends
	ToClient                       // what the server answers
	Both     = ToServer | ToClient
)

// A Proxy forwards TCP connections from Addr to its target. All its methods are safe for
// concurrent use.
type Proxy struct {
	addr    string
	ctx     context.Context // ends with Close: no dial and no wait outlives it
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	target   string
	listener net.Listener // nil while refusing and after Close
	conns    map[*conn]struct{}
	accepted int
	paused   Direction
	delay    [2]time.Duration // per way
	rejects  bool
	closed   bool
	budget   [2]int64 // bytes until the cut that CutAfter asked for, per way; below 0: none
}

// Listen starts a proxy to target, a host:port, on a free port of the loopback interface. The
// target need not be there yet: a client whose connection cannot be forwarded is reset.
func Listen(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("tcpproxy: listen: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		addr: l.Addr().String(), target: target, ctx: ctx, cancel: cancel,
		conns: map[*conn]struct{}{}, budget: [2]int64{-1, -1},
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serve(l)
	return p, nil
}

// Addr is the host:port to connect to. It stays the same for the life of the proxy.
func (p *Proxy) Addr() string { return p.addr }

// SetTarget sends later connections to another server. Those that are open stay where they are:
// Cut them to move them.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Open is the number of connections open through the proxy.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Accepted is the number of connections that clients have made since the start, those that
// Reject reset included. The ones that Refuse turned away are unknown to the proxy.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Cut resets all open connections, on both sides, and returns how many there were. What was on
// its way is lost. New connections are not affected.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut()
}

func (p *Proxy) cut() int {
	n := len(p.conns)
	for c := range p.conns {
		c.reset()
		delete(p.conns, c)
	}
	return n
}

// CutAfter forwards n more bytes in the direction d, counted over all connections, and then cuts
// as Cut does: the byte n+1 is never forwarded. It acts once. With Both each way has a budget of n
// and whichever is used up first cuts. A later call replaces an earlier one; a negative n takes it
// back.
func (p *Proxy) CutAfter(d Direction, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget = [2]int64{-1, -1}
	for w := range p.budget {
		if d&way(w).direction() != 0 {
			p.budget[w] = n
		}
	}
}

// Pause holds back what is sent in the direction d, on open and on new connections. What arrives
// after Pause has returned is not forwarded before Resume; nor is the end of a connection. New
// connections are still accepted and made to the target. Pauses add up.
func (p *Proxy) Pause(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused |= d
	p.pauseOpen(d)
}

// PauseOpen is Pause for the connections that are open now: a client that connects again is
// served. That is what a failover behind a moved address looks like.
func (p *Proxy) PauseOpen(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pauseOpen(d)
}

func (p *Proxy) pauseOpen(d Direction) {
	for c := range p.conns {
		c.pause(d)
	}
}

// Resume ends all pauses, and forwards what was held back.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = 0
	for c := range p.conns {
		c.resume()
	}
}

// Delay forwards each piece of data d later than it came, in both directions and on all
// connections; 0, the default, ends that. It delays, and it slows down: while a piece waits, the
// next one is not read.
func (p *Proxy) Delay(d time.Duration) { p.DelayOnly(Both, d) }

// DelayOnly is Delay for one direction. The other one, unless it is Both, stays as it was.
func (p *Proxy) DelayOnly(direction Direction, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.delay {
		if direction&way(w).direction() != 0 {
			p.delay[w] = d
		}
	}
}

// Refuse stops listening: new connections are refused by the system, as they are when a server is
// down. Open ones stay: Cut them to take the server away altogether.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// Reject accepts new connections and resets them at once, as a load balancer does that has no
// server left. Unlike those that Refuse turns away they are counted by Accepted.
func (p *Proxy) Reject() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rejects = true
}

// Accept ends what Refuse and Reject began. It fails if another process has taken the port.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rejects = false
	if p.listener != nil || p.closed {
		return nil
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("tcpproxy: listen again: %w", err)
	}
	p.serve(l)
	return nil
}

// Close stops listening, resets all connections and waits until nothing of the proxy runs any
// more. Calling it again does nothing.
func (p *Proxy) Close() error {
	p.Refuse()
	p.mu.Lock()
	p.closed = true
	p.cut()
	p.mu.Unlock()
	p.cancel()
	p.running.Wait()
	return nil
}

// serve accepts connections from l until it is closed. The caller holds p.mu.
func (p *Proxy) serve(l net.Listener) {
	p.listener = l
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed by Refuse or Close; a loopback listener has no other errors that matter
			}
			p.running.Go(func() { p.forward(client.(*net.TCPConn)) })
		}
	})
}

// forward connects client to the target and returns when both are done.
func (p *Proxy) forward(client *net.TCPConn) {
	p.mu.Lock()
	p.accepted++
	rejects, target := p.rejects, p.target
	p.mu.Unlock()
	if rejects {
		reset(client)
		return
	}
	var dialer net.Dialer
	server, err := dialer.DialContext(p.ctx, "tcp", target)
	if err != nil {
		reset(client)
		return
	}
	c := newConn(p, client, server.(*net.TCPConn))
	p.mu.Lock()
	if p.closed {
		c.reset()
	} else {
		p.conns[c] = struct{}{}
		c.pause(p.paused)
	}
	p.mu.Unlock()
	c.run()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// allow takes n bytes in the way w out of the budget. It returns how many of them may be
// forwarded, and whether the connections are to be cut after that.
func (p *Proxy) allow(w way, n int) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.budget[w]
	if left < 0 {
		return n, false
	}
	if int64(n) <= left {
		p.budget[w] -= int64(n)
		return n, false
	}
	p.budget = [2]int64{-1, -1}
	return int(left), true
}
