package resident

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fileKB is what /proc/self/status says of the pages of files in this process, in KiB.
func fileKB(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb
}

// All of the program is read first, as by a start that needs all of it.
func TestPagesThatOnlyTheStartNeededAreGivenBack(t *testing.T) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer smaps.Close()
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	mappings, err := unchanged(bufio.NewScanner(smaps), program)
	if err != nil || len(mappings) < 2 {
		t.Fatalf("instructions and constants of %s: %v, %v", program, mappings, err)
	}
	read := func() (all []byte) {
		for _, m := range mappings {
			bytes := make([]byte, m.end-m.start)
			if _, err := memory.ReadAt(bytes, int64(m.start)); err != nil {
				t.Fatal(err)
			}
			all = append(all, bytes...)
		}
		return all
	}
	content, before := read(), fileKB(t)
	if err := GiveBack(); err != nil {
		t.Fatal(err)
	}
	if after := fileKB(t); after > before*3/4 {
		t.Errorf("%d KiB of files before, %d after", before, after)
	}
	if !slices.Equal(read(), content) {
		t.Error("the program has changed")
	}
}

func TestMappingsThatWereWrittenToAreKept(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 fe:00 12 /usr/bin/ballast
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
00500000-00600000 r--p 00100000 fe:00 12 /usr/bin/ballast
Anonymous:             4 kB
Swap:                  0 kB
VmFlags: rd mr mw me
00600000-00700000 r--p 00200000 fe:00 12 /usr/bin/ballast
Anonymous:             0 kB
Swap:                  4 kB
VmFlags: rd mr mw me
00700000-00800000 rw-p 00300000 fe:00 12 /usr/bin/ballast
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me
00800000-00900000 r-xp 00000000 fe:00 13 /usr/lib/other
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
00900000-00a00000 r-xp 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
`
	found, err := unchanged(bufio.NewScanner(strings.NewReader(smaps)), "/usr/bin/ballast")
	if want := []mapping{{0x400000, 0x500000}}; err != nil || !slices.Equal(found, want) {
		t.Errorf("got %v, %v, want %v", found, err, want)
	}
}
