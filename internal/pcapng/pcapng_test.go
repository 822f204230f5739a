package pcapng

import (
	"bytes"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"pgregory.net/rapid"
)

// The other reader is gopacket's.
func TestWhatIsWrittenIsReadByAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var file bytes.Buffer
		w, err := NewWriter(&file, "ballast", 192)
		if err != nil {
			t.Fatal(err)
		}
		packets := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Packet {
			head := rapid.SliceOfN(rapid.Byte(), 0, 192).Draw(t, "head")
			return Packet{Time: time.Unix(0, rapid.Int64Range(0, 1<<62).Draw(t, "ns")), Interface: rapid.SampledFrom([]string{"eth0", "eth1", "bond0.100"}).Draw(t, "interface"),
				Head: head, Length: uint32(len(head)) + rapid.Uint32Range(0, 9000).Draw(t, "more"), Comment: rapid.StringN(0, 40, 60).Draw(t, "comment")}
		}), 1, 12).Draw(t, "packets")
		for _, p := range packets {
			if err := w.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range packets {
			head, info, options, err := r.ReadPacketDataWithOptions()
			if err != nil {
				t.Fatal(err)
			}
			of, err := r.Interface(info.InterfaceIndex)
			if err != nil || of.Name != want.Interface || of.SnapLength != 192 {
				t.Errorf("packet %d: interface %q, snap length %d (%v), not %q", i, of.Name, of.SnapLength, err, want.Interface)
			}
			if !bytes.Equal(head, want.Head) || info.Length != int(want.Length) || !info.Timestamp.Equal(want.Time) {
				t.Errorf("packet %d: %x of %d at %v, not %x of %d at %v", i, head, info.Length, info.Timestamp, want.Head, want.Length, want.Time)
			}
			if len(options.Comments) != 1 || options.Comments[0] != want.Comment {
				t.Errorf("packet %d: comments %q, not %q", i, options.Comments, want.Comment)
			}
		}
	})
}
