// Package pcapng writes packets as Wireshark and tcpdump read them (draft-ietf-opsawg-pcapng). gopacket's writer would link all of its protocols.
package pcapng

import (
	"encoding/binary"
	"io"
	"time"
)

// Specification constants.
const (
	sectionBlock, interfaceBlock, packetBlock    = 0x0a0d0d0a, 1, 6
	byteOrder                                    = 0x1a2b3c4d
	ethernet                                     = 1
	endOfOptions, comment, application           = 0, 1, 4
	interfaceName, timeResolution, inNanoseconds = 2, 9, 9
)

// A Writer writes one section, each packet by one Write.
type Writer struct {
	to         io.Writer
	snap       uint32
	interfaces map[string]uint32
}

// A Packet is one frame, of which Head are the first bytes.
type Packet struct {
	Time      time.Time
	Interface string
	Head      []byte
	Length    uint32 // of the frame
	Comment   string
}

// NewWriter begins a section; of each frame there are at most snap bytes.
func NewWriter(to io.Writer, program string, snap uint32) (*Writer, error) {
	w := &Writer{to, snap, map[string]uint32{}}
	head := binary.LittleEndian.AppendUint32(nil, byteOrder)
	head = append(head, 1, 0, 0, 0)                           // version 1.0
	head = binary.LittleEndian.AppendUint64(head, ^uint64(0)) // its length is not known
	_, err := to.Write(block(sectionBlock, option(option(head, application, program), endOfOptions, "")))
	return w, err
}

// Write writes a packet, and before it the interface where that is a new one.
func (w *Writer) Write(p Packet) error {
	var out []byte
	index, known := w.interfaces[p.Interface]
	if !known {
		index = uint32(len(w.interfaces))
		w.interfaces[p.Interface] = index
		body := binary.LittleEndian.AppendUint32([]byte{ethernet, 0, 0, 0}, w.snap)
		body = option(option(body, interfaceName, p.Interface), timeResolution, string([]byte{inNanoseconds}))
		out = block(interfaceBlock, option(body, endOfOptions, ""))
	}
	ns := uint64(p.Time.UnixNano())
	var body []byte
	for _, word := range []uint32{index, uint32(ns >> 32), uint32(ns), uint32(len(p.Head)), p.Length} {
		body = binary.LittleEndian.AppendUint32(body, word)
	}
	body = padded(append(body, p.Head...))
	_, err := w.to.Write(append(out, block(packetBlock, option(option(body, comment, p.Comment), endOfOptions, ""))...))
	return err
}

func block(kind uint32, body []byte) []byte {
	length := uint32(len(body) + 12)
	out := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, kind), length)
	return binary.LittleEndian.AppendUint32(append(out, body...), length)
}

func option(to []byte, code uint16, value string) []byte {
	to = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(to, code), uint16(len(value)))
	return padded(append(to, value...))
}

// padded fills up to whole words.
func padded(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
