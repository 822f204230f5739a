// Package software runs programs that are not ours on the nodes of a lab: web servers, proxies, routers, browsers.
package software

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

//go:embed config
var config embed.FS

// configurations are templates by the name of the program and what it is for: PROGRAM or PROGRAM-PURPOSE.
var configurations = template.Must(template.ParseFS(config, "config/*"))

// fileFlags are the arguments of programs in front of the path of their configuration.
var fileFlags = map[string][]string{
	"nginx": {"-c"}, "apache2": {"-DFOREGROUND", "-f"}, "haproxy": {"-db", "-f"}, "dovecot": {"-F", "-c"}, "bird": {"-f", "-c"},
	"keepalived": {"-n", "-l", "-P", "-f"},
}

// Program is a program on a node, and how it is started.
type Program struct {
	Node, Name    string   // Name: of an installed program, or its path
	Under         []string // the command that starts it, as `mptcpize run`
	Arguments     []string
	Environment   []string
	Configuration string // its template; empty: none
	Dir           string // of the configuration
	Values        any    // of the template
	Stdout        io.Writer
	CPUs          float64        // that it gets; 0: no limit
	Group         string         // of that limit; default: the node
	Listens       netip.AddrPort // where it is to answer before Start returns; zero: nowhere
}

// Site is what a server or a proxy serves, and where: the value of its configuration.
type Site struct {
	Dir, Name                       string
	Address                         netip.AddrPort
	Listen                          []string // nginx: instead of Address
	Certificate                     string   // its files without .crt, .key and .pem, which has both
	Header                          string   // of answers, which has its name
	Cookie                          string   // by which a proxy finds the server of a session
	Servers                         []Site   // of a proxy
	Root, Health, Push, Page, Group string
}

// Start starts a program, with its configuration in its directory.
func (p Program) Start(lab *host.Lab) *host.Process {
	path := script.Must(find(p.Name))
	arguments := p.Arguments
	if p.Configuration != "" {
		name, _, _ := strings.Cut(p.Configuration, "-")
		arguments = slices.Concat(arguments, fileFlags[name], []string{Configure(p.Configuration, p.Dir, p.Values)})
	}
	command := slices.Concat(p.Under, []string{path}, arguments)
	started, err := lab.Start(host.Spawn{Node: p.Node, Program: command[0], Arguments: command[1:], Environment: p.Environment, Stdout: p.Stdout})
	script.Checkf(err, "start %s: is %s installed?", path, command[0])
	if p.CPUs != 0 {
		started.LimitCPU(cmp.Or(p.Group, p.Node), p.CPUs)
	}
	if p.Listens.IsValid() {
		started.AwaitPort(p.Listens)
	}
	return started
}

// Configure writes a configuration into a directory, and returns its path.
func Configure(configuration, dir string, values any) (path string) {
	var text bytes.Buffer
	script.Checkf(configurations.ExecuteTemplate(&text, configuration, values), "configure %s", configuration)
	script.Checkf(os.MkdirAll(dir, 0o755), "configure %s", configuration)
	path = filepath.Join(dir, configuration+".conf")
	script.Checkf(os.WriteFile(path, text.Bytes(), 0o644), "configure %s", configuration)
	return path
}

// find also looks where users have no programs.
func find(name string) (string, error) {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("find %s: it is not installed", name)
}

// Find is an error if one of the programs, or the library that they preload, is missing.
func Find(options *host.Options, programs ...string) error {
	for _, program := range programs {
		if _, err := find(program); err != nil {
			return err
		}
	}
	if _, err := os.Stat(Preloaded(options, "ticket")); err != nil {
		return fmt.Errorf("find the library that servers preload: %w: `make build` makes it", err)
	}
	return nil
}

// Preloaded is the path of a library that servers preload: ticket or quic.
func Preloaded(options *host.Options, name string) string {
	return filepath.Join(filepath.Dir(options.Binary), "ballast-"+name+".so")
}

// Certificate makes a certificate for servers, and returns its files without .crt, .key and .pem, which has both.
func Certificate(lab *host.Lab) string {
	certificate := filepath.Join(lab.Dir, "quic")
	output, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
		"-subj", "/CN=lab", "-keyout", certificate+".key", "-out", certificate+".crt").CombinedOutput()
	script.Checkf(err, "make a certificate: %s", output)
	both := slices.Concat(script.Must(os.ReadFile(certificate+".crt")), script.Must(os.ReadFile(certificate+".key")))
	script.Checkf(os.WriteFile(certificate+".pem", both, 0o600), "write a certificate with its key")
	return certificate
}
