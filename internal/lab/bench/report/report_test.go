package report

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// The machine's own names and addresses, by other ways than the report's, are in none of its files, by whatever field they come.
func TestAReportDoesNotTellWhoseItIs(t *testing.T) {
	known := []string{"balancer7", "BALANCER7.example.net", "10.9.8.7", "2001:db8::7", "52:54:00:ab:cd:ef"}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	if len(host) >= 4 && host != "localhost" {
		own = append(own, host)
	}
	for _, device := range interfaces {
		if device.Flags&net.FlagLoopback != 0 {
			continue
		}
		own = append(own, device.HardwareAddr.String())
		addresses, err := device.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range addresses {
			own = append(own, netip.MustParsePrefix(address.String()).Addr().String())
		}
	}
	own = slices.DeleteFunc(own, func(one string) bool { return one == "" })
	machine, err := ReadMachine(Root())
	if err != nil {
		t.Fatal(err)
	}
	machine.Product += " " + strings.Join(own, " ")
	r := &Report{Machine: machine, Cards: []Card{{Firmware: strings.ToUpper(strings.Join(own, "/")), Offloads: own}}}
	if err := r.Clean(Root()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	if err := Write(file, r, []byte("text")); err != nil {
		t.Fatal(err)
	}
	all := strings.ToLower(unpack(t, file))
	for _, one := range own {
		if strings.Contains(all, strings.ToLower(one)) {
			t.Errorf("the report says %q", one)
		}
	}
	if !strings.Contains(all, "processor") || len(own) > 0 && !strings.Contains(all, removed) {
		t.Errorf("it says %s", all)
	}
	text := string(scrub([]byte("6.1-balancer7 at BALANCER7.EXAMPLE.NET, 52:54:00:AB:CD:EF, 10.9.8.7, 2001:DB8::7; 16384 kB"), tidy(append(known, "1638", "kb", "debian"))))
	if want := "6.1-(removed) at (removed), (removed), (removed), (removed); 16384 kB"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
}

func unpack(t *testing.T, file string) (all string) {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	plain, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(plain)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uname != "" || header.Uid != 0 {
			t.Errorf("%s belongs to %q (%d)", header.Name, header.Uname, header.Uid)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		all += header.Name + "\n" + string(text)
	}
}

func TestOfTheCommandLineAReportTakesWhatIsAboutSpeed(t *testing.T) {
	root := fstest.MapFS{
		"proc/cpuinfo":                                   {Data: []byte("model name\t: Some CPU\nphysical id\t: 0\ncore id\t: 0\nflags\t: fpu hypervisor\n\nphysical id\t: 0\ncore id\t: 1\n\nphysical id\t: 1\ncore id\t: 0\n")},
		"proc/meminfo":                                   {Data: []byte("MemTotal:       2048000 kB\nMemFree: 1 kB\n")},
		"proc/cmdline":                                   {Data: []byte("root=UUID=1234-5678 ip=10.0.0.1::10.0.0.254 mitigations=off password=secret nohz_full=1-3 mitigationsx=1\n")},
		"sys/class/dmi/id/product_name":                  {Data: []byte("Server\n")},
		"proc/sys/net/core/bpf_jit_enable":               {Data: []byte("1\n")},
		"sys/devices/system/node/node0/x":                {},
		"sys/devices/system/node/node1/x":                {},
		"sys/devices/system/node/possible":               {Data: []byte("0-1\n")},
		"sys/devices/system/cpu/cpu0/cache/index0/level": {Data: []byte("1\n")},
		"sys/devices/system/cpu/cpu0/cache/index0/type":  {Data: []byte("Data\n")},
		"sys/devices/system/cpu/cpu0/cache/index0/size":  {Data: []byte("32K\n")},
		"sys/devices/system/cpu/vulnerabilities/mds":     {Data: []byte("Not affected\n")},
	}
	m, err := ReadMachine(root)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"mitigations=off", "nohz_full=1-3"}; !slices.Equal(m.Parameters, want) {
		t.Errorf("parameters %q, want %q", m.Parameters, want)
	}
	p := m.Processor
	if p.Model != "Some CPU" || p.Cores != 3 || p.Sockets != 2 || p.Nodes != 2 || !p.Virtual || !slices.Equal(p.Caches, []string{"L1 Data 32K"}) || m.MemoryMB != 2000 ||
		m.Product != "Server" || m.Mitigation["mds"] != "Not affected" || m.Settings["/proc/sys/net/core/bpf_jit_enable"] != "1" || len(m.Settings) != 1 {
		t.Errorf("%+v", m)
	}
}

func TestAReportReplacesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	if err := os.WriteFile(file, []byte("of somebody"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(file, &Report{}, nil); !os.IsExist(err) && !strings.Contains(err.Error(), "file exists") {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "of somebody" {
		t.Errorf("%q, %v", text, err)
	}
}
