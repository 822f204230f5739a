package apitest

import (
	"net"
	"sync"
)

// Pipes is a listener whose connections are not the kernel's: in a bubble of testing/synctest their time is the test's.
type Pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// NewPipes returns a listener that nobody has connected to.
func NewPipes() *Pipes { return &Pipes{accepted: make(chan net.Conn), closed: make(chan struct{})} }

// Connect waits until it is accepted. With a listener that is closed it returns a connection that has ended.
func (p *Pipes) Connect() net.Conn {
	mine, its := net.Pipe()
	select {
	case p.accepted <- its:
	case <-p.closed:
		its.Close()
	}
	return mine
}

// Accept implements net.Listener.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *Pipes) Addr() net.Addr { return &net.TCPAddr{} }
