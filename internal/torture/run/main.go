//go:build unix

// Command run tortures relays: `make torture`.
package main

import (
	"os"

	"github.com/commitrelay/outbox/internal/torture"
)

func main() { os.Exit(torture.Main(os.Args[1:], os.Stdout, os.Stderr)) }
