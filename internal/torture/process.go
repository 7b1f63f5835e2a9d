//go:build unix

package torture

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a program that runs for us, in a process group of its own: it does not get the
// terminal's Ctrl-C.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed at its end; then cmd.ProcessState tells how
}

// launch starts a program whose output goes to a file.
func launch(output, program string, args ...string) (*process, error) {
	file, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	defer file.Close() // the process has its own
	p := &process{cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(p.cmd.SysProcAttr)
	started := make(chan error)
	go func() {
		defer close(p.exited)
		// Linux tells a child that its parent has died when the thread ends that made the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // ProcessState tells
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal sends a signal; it fails if the process has ended.
func (p *process) signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// kill ends it as kill -9 does, and waits for its end. A process that is stopped dies, too.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails if it has ended
	<-p.exited
}
