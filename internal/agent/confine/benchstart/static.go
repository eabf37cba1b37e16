package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
)

// exits are the instructions of exit(0).
var exits = map[string][]byte{
	"amd64": {
		0x31, 0xff, // xor edi, edi
		0xb8, 0x3c, 0, 0, 0, // mov eax, SYS_EXIT
		0x0f, 0x05, // syscall
	},
	"arm64": {
		0x00, 0x00, 0x80, 0xd2, // mov x0, #0
		0xa8, 0x0b, 0x80, 0xd2, // mov x8, #SYS_EXIT
		0x01, 0x00, 0x00, 0xd4, // svc #0
	},
}

// static is a whole program that exits at once, so that what is measured is the
// start alone: neither a dynamic linker nor a runtime.
func static() []byte {
	const base = 0x400000
	code := exits[runtime.GOARCH]
	head := binary.Size(elf.Header64{}) + binary.Size(elf.Prog64{})
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: base + uint64(head), Phoff: uint64(binary.Size(elf.Header64{})),
		Ehsize: uint16(binary.Size(elf.Header64{})), Phentsize: uint16(binary.Size(elf.Prog64{})), Phnum: 1,
	}
	if runtime.GOARCH == "arm64" {
		h.Machine = uint16(elf.EM_AARCH64)
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	h.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	h.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	size := uint64(head + len(code))
	p := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000,
	}
	var b bytes.Buffer
	for _, part := range []any{h, p, code} {
		// A bytes.Buffer takes everything of fixed size.
		_ = binary.Write(&b, binary.LittleEndian, part)
	}
	return b.Bytes()
}
