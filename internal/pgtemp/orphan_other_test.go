//go:build !linux

package pgtemp_test

// orphanEnv and beOrphaned belong to a test that only Linux can pass.
const orphanEnv = "PGTEMP_TEST_ORPHAN"

func beOrphaned() {}
