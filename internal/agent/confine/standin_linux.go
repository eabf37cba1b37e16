//go:build amd64 || arm64

package confine

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// standInStatus is the exit status of a stand-in: "found, but may not be executed".
const standInStatus = 126

// standIn is the program that masks a denied file: it writes text to stderr and
// exits. It is a whole executable of a few instructions, because it must work
// without an interpreter and without being readable.
func standIn(text string) []byte {
	const base = 0x400000
	head := binary.Size(elf.Header64{}) + binary.Size(elf.Prog64{})
	code := standInCode(len(text))
	size := uint64(head + len(code) + len(text))
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(standInMachine), Version: uint32(elf.EV_CURRENT),
		Entry: base + uint64(head), Phoff: uint64(binary.Size(elf.Header64{})),
		Ehsize: uint16(binary.Size(elf.Header64{})), Phentsize: uint16(binary.Size(elf.Prog64{})), Phnum: 1,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	h.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	h.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	p := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000,
	}
	var b bytes.Buffer
	for _, part := range []any{h, p, code, []byte(text)} {
		// A bytes.Buffer takes everything of fixed size.
		_ = binary.Write(&b, binary.LittleEndian, part)
	}
	return b.Bytes()
}
