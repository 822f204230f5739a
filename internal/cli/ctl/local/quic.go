// ctl quic.
package local

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/pkg/quiclb"
)

// quicPrograms are those that `ballast ctl quic config` knows.
var quicPrograms = map[string]func(out io.Writer, path string, file *quiclb.File) error{
	"envoy": envoyConfig, "envoy-secret": envoySecret, "nginx": nginxConfig, "aws": awsConfig,
}

// QUIC makes `ballast ctl quic`.
func QUIC(c *ask.Control) *cobra.Command {
	var names []string
	for name := range quicPrograms {
		names = append(names, name)
	}
	slices.Sort(names)
	cmd := &cobra.Command{Use: "quic", Short: "Show how servers of services with affinity quic make connection ids"}
	config := &cobra.Command{Use: "config SERVICE", Short: "Print the configuration of a server on this host"}
	program := config.Flags().String("for", "", "program that it is for: "+strings.Join(names, ", "))
	config.RunE = func(cmd *cobra.Command, args []string) error {
		write := quicPrograms[*program]
		if write == nil {
			return command.Usage("--for: use one of %s", strings.Join(names, ", "))
		}
		path, err := c.IDFile(args[0])
		if err != nil {
			return err
		}
		file, err := readIDFile(path)
		if err != nil {
			return err
		}
		return write(cmd.OutOrStdout(), path, file)
	}
	cmd.AddCommand(config)
	return cmd
}

func readIDFile(path string) (*quiclb.File, error) {
	if _, err := quiclb.Open(path); err != nil { // which checks it
		if errors.Is(err, os.ErrNotExist) {
			there, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*.json"))
			for i := range there {
				there[i] = strings.TrimSuffix(filepath.Base(there[i]), ".json")
			}
			return nil, fmt.Errorf("%s is not there: `ballast agent` writes it on servers of services with affinity quic (here: %s)", path, strings.Join(append(there, "none")[:max(1, len(there))], ", "))
		}
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file := new(quiclb.File)
	return file, json.Unmarshal(text, file)
}

// envoyConfig is for a listener. It has no secret.
func envoyConfig(out io.Writer, _ string, file *quiclb.File) error {
	if both := len(file.ServerID) + file.NonceLength; both > 18 {
		return fmt.Errorf("server id and nonce may have 18 bytes, as Envoy appends one, and have %d: change quic.nonce_length of service %s", both, file.Service)
	}
	_, err := fmt.Fprintf(out, `# of the listener, under udp_listener_config; it does not change with keys
quic_options:
  connection_id_generator_config:
    name: envoy.quic.connection_id_generator.quic_lb
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.quic.connection_id_generator.quic_lb.v3.Config
      unencrypted_mode: %t
      server_id: {inline_bytes: %s}
      expected_server_id_length: %d
      nonce_length_bytes: %d
      encryption_parameters:
        name: quic_lb
        sds_config: {path_config_source: {path: /etc/envoy/quic_lb.yaml}}   # ballast ctl quic config %s --for envoy-secret
`, file.Algorithm == "plain", base64.StdEncoding.EncodeToString(file.ServerID), len(file.ServerID), file.NonceLength, file.Service)
	return err
}

// envoySecret is what a listener's encryption_parameters name. It changes with keys.
func envoySecret(out io.Writer, _ string, file *quiclb.File) error {
	encode := base64.StdEncoding.EncodeToString
	_, err := fmt.Fprintf(out, `# secret; it changes with keys: write it again then, and move it to its place
resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: quic_lb
  generic_secret:
    secrets:
      encryption_key: {inline_bytes: %s}
      configuration_version: {inline_bytes: %s}
`, encode(file.Key), encode([]byte{file.Config}))
	return err
}

// nginxConfig is for its unit.
func nginxConfig(out io.Writer, path string, _ *quiclb.File) error {
	_, err := fmt.Fprintf(out, `# systemctl edit nginx; workers must be able to read the file: ballast agent --quic-group www-data
[Service]
Environment=LD_PRELOAD=/usr/local/lib/ballast-quic.so
Environment=BALLAST_QUIC=%s
`, path)
	return err
}

// awsConfig is for applications that were written for AWS's load balancers: they know plain ids of 8 bytes, of config 0.
func awsConfig(out io.Writer, _ string, file *quiclb.File) error {
	if file.Algorithm != "plain" || len(file.ServerID) != 8 || file.Config != 0 {
		return fmt.Errorf("applications for AWS make plain ids of 8 bytes and config 0, and service %s has %s ids of %d bytes and config %d: set `quic: {algorithm: plain, server_id_length: 8, "+
			"nonce_length: 8}`, and use a key whose epoch is a multiple of 7", file.Service, file.Algorithm, len(file.ServerID), file.Config)
	}
	_, err := fmt.Fprintf(out, "AWS_LBC_QUIC_SERVER_ID=%s\n", base64.StdEncoding.EncodeToString(file.ServerID))
	return err
}
