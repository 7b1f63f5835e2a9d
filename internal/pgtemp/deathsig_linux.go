package pgtemp

import "syscall"

// dieWithParent stops the server when we are killed and cannot. Its folder stays.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
