// Clients that are not ours.
package tlsclient

import (
	"bytes"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// programs are clients by their program. Each begins a session and resumes it, and reports what it has seen in each
// connection.
var programs = map[string]func(c *client, ctx context.Context, version uint16, saw func(visit)) error{
	"curl": (*client).curl, "openssl": (*client).openssl, "python3": (*client).python,
}

const (
	curlsPerSecond = 10
	between        = 200 * time.Millisecond // connections of openssl and Python
)

//go:embed client.py
var pythonClient string

// curl keeps its sessions for as long as it runs. Of three requests the first two share a connection.
func (c *client) curl(_ context.Context, version uint16, saw func(visit)) error {
	host, port, err := net.SplitHostPort(c.Target)
	if err != nil {
		return err
	}
	url := "https://lab:" + port + "/"
	each := []string{"--silent", "--show-error", "--insecure", "--tls-max", map[uint16]string{tls.VersionTLS12: "1.2", tls.VersionTLS13: "1.3"}[version],
		"--connect-to", "lab:" + port + ":[" + host + "]:" + port, "--max-time", strconv.Itoa(int(patient.Seconds())), "--dump-header", "-", "--output", os.DevNull}
	arguments := []string{"--rate", fmt.Sprintf("%d/s", curlsPerSecond)}
	for i := range c.Resumes + 1 {
		if i > 0 {
			arguments = append(arguments, "--next")
		}
		arguments = append(append(arguments, each...), url, "--output", os.DevNull, url, "--next")
		arguments = append(append(arguments, each...), "--header", "Connection: close", url)
	}
	output, err := runProgram("curl", "", arguments...)
	if err != nil {
		return err
	}
	all, err := protocols[c.Protocol].all(output)
	if err != nil {
		return err
	}
	if len(all) != 3*(c.Resumes+1) {
		return fmt.Errorf("curl: %d answers to %d requests", len(all), 3*(c.Resumes+1))
	}
	for i, now := range all {
		switch {
		case i%3 == 0:
			saw(visit{Answer: now, resumed: *now.Resumed})
		case now.Port != all[i-1].Port || now.Server != all[i-1].Server:
			return errors.New("curl: two requests of one connection were not in one")
		}
	}
	return nil
}

// openssl is run for each connection. It keeps the session in a file, but with TLS 1.2 no ticket that comes when a
// session is resumed (OpenSSL's ssl_update_cache): a session ends here when another server has it, whose name such a
// ticket would have.
func (c *client) openssl(ctx context.Context, version uint16, saw func(visit)) error {
	dir, err := os.MkdirTemp("", "ballast-lab-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "session")
	arguments := []string{"s_client", "-connect", c.Target, "-servername", "lab", "-ign_eof", "-sess_out", file,
		map[uint16]string{tls.VersionTLS12: "-tls1_2", tls.VersionTLS13: "-tls1_3"}[version]}
	first, now := "", ""
	for i := 0; i <= c.Resumes && now == first && ctx.Err() == nil; i++ {
		output, err := runProgram("openssl", protocols[c.Protocol].last, arguments...)
		if err != nil {
			return err
		}
		err = c.one("openssl", output, func(v visit) {
			saw(v)
			now = v.Server
		})
		if err != nil {
			return err
		}
		if i == 0 {
			first = now
			arguments = append(arguments, "-sess_in", file)
			if c.Early && version == tls.VersionTLS13 {
				early := filepath.Join(dir, "early")
				if err := os.WriteFile(early, []byte(protocols[c.Protocol].request), 0o600); err != nil {
					return err
				}
				arguments = append(arguments, "-early_data", early)
			}
		}
		select {
		case <-time.After(between):
		case <-ctx.Done():
		}
	}
	return nil
}

// python is one process for each session, which prints what it is answered, and whether it has resumed the session.
func (c *client) python(_ context.Context, version uint16, saw func(visit)) error {
	host, port, err := net.SplitHostPort(c.Target)
	if err != nil {
		return err
	}
	output, err := runProgram("python3", protocols[c.Protocol].last, "-c", pythonClient, host, port,
		map[uint16]string{tls.VersionTLS12: "TLSv1_2", tls.VersionTLS13: "TLSv1_3"}[version], strconv.Itoa(c.Resumes+1), fmt.Sprint(patient.Seconds()), fmt.Sprint(between.Seconds()))
	if err != nil {
		return err
	}
	connections := strings.SplitAfter(output, "\n--\n")
	if len(connections) != c.Resumes+2 {
		return fmt.Errorf("python3: %d connections of %d", len(connections)-1, c.Resumes+1)
	}
	for _, output := range connections[:c.Resumes+1] {
		if err := c.one("python3", output, saw); err != nil {
			return err
		}
	}
	return nil
}

// reused is what s_client, and client.py after it, print about the session.
var reused = regexp.MustCompile(`(?m)^(New|Reused), TLSv1\.[23]`)

// one reads what a program has printed about one connection.
func (c *client) one(program, output string, saw func(visit)) error {
	now, err := protocols[c.Protocol].answer(output)
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	found := reused.FindStringSubmatch(output)
	if found == nil {
		return fmt.Errorf("%s does not say whether it has resumed a session", program)
	}
	resumed := found[1] == "Reused"
	if now.Resumed != nil && *now.Resumed != resumed {
		return fmt.Errorf("resumed: %t says %s, %t by the server", resumed, program, *now.Resumed)
	}
	saw(visit{Answer: now, resumed: resumed, early: strings.Contains(output, "\nEarly data was accepted\n")})
	return nil
}

// run runs a program to its end, also when clients are to end, and returns what it has printed.
func runProgram(program, in string, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patient-reportInterval)
	defer cancel()
	var out, complaints bytes.Buffer
	command := exec.CommandContext(ctx, program, arguments...)
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(in), &out, &complaints
	command.WaitDelay = time.Second
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, complaints.String())
	}
	return out.String(), nil
}
