//go:build !unix

package pgtemp

import (
	"os"
	"syscall"
)

// account has no use here: commands run as the user we are.
type account struct{ name string }

func accounts() []*account { return []*account{nil} }

func (a *account) String() string { return "this user" }

func (a *account) own(string) error { return nil }

func (a *account) attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func killGroup(p *os.Process) error { return p.Kill() }
