//go:build unix

package pgtemp

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is another user that commands run as. The nil account is the user we are.
type account struct {
	name     string
	uid, gid int
}

// accounts are the users to try, the preferred first. PostgreSQL refuses to run as root.
func accounts() []*account {
	if os.Geteuid() != 0 {
		return []*account{nil}
	}
	var found []*account
	// Who called sudo owns a Homebrew installation, and may be the only one to have access to it.
	for _, name := range []string{"postgres", "_postgres", os.Getenv("SUDO_USER"), "nobody", "daemon"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid != 0 {
			found = append(found, &account{name, uid, gid})
		}
	}
	return found
}

func (a *account) String() string {
	if a == nil {
		return "this user"
	}
	return "user " + a.name
}

// own gives a file to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// attributes make a command run as the account, in a process group of its own.
func (a *account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// killGroup kills a process that attributes made the head of a group, and the group.
func killGroup(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }
