package confine

import (
	"debug/elf"
	"encoding/binary"
)

const standInMachine = elf.EM_AARCH64

// standInCode writes the n bytes that follow it, fewer than 64 Ki, to stderr and exits.
func standInCode(n int) []byte {
	movz := func(register, value int) uint32 { return 0xd2800000 | uint32(value)<<5 | uint32(register) }
	const svc = 0xd4000001
	var c []byte
	for _, instruction := range []uint32{
		movz(0, 2),
		0x100000e1, // adr x1, #28: what follows the code
		movz(2, n),
		movz(8, 64), // write
		svc,
		movz(0, standInStatus),
		movz(8, 94), // exit_group
		svc,
	} {
		c = binary.LittleEndian.AppendUint32(c, instruction)
	}
	return c
}
