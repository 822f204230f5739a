// Package cli is the command line of ballast-kube.
package cli

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/help"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/kube"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/pki"
)

//go:embed help/*.txt
var texts embed.FS

// Requests to the API server a second, and at once: a cluster of thousands of Services gets its addresses within a minute.
const (
	requestRate  = 100
	requestBurst = 200
)

// namespaceFile names the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// options are those of the command line.
type options struct {
	kube.Options
	server          server
	config          string
	pools           []string
	controllers     []string
	tlsDir, tlsName string
	listen          string
}

// server is how the API server is reached.
type server struct{ kubeconfig, context string }

func (s *server) flags(flags *pflag.FlagSet) {
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server (default: KUBECONFIG, else the account of this pod)")
	flags.StringVar(&s.context, "context", "", "`NAME` of the context in --kubeconfig (default: the current one)")
}

// Root returns the command `ballast-kube`; build is its version.
func Root(build string) *cobra.Command {
	o := options{}
	o.Version = build
	var logging *command.Logging
	root := &cobra.Command{
		Use:              "ballast-kube --controller HOST[:PORT],... (--pool [NAME=]ADDRESSES | --config FILE)",
		Short:            "Keep the Services of a Kubernetes cluster in a fleet of Ballast",
		Version:          build,
		SilenceUsage:     true,
		SilenceErrors:    true,
		Args:             cobra.NoArgs,
		PersistentPreRun: command.PrintLegibly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			o.Log = logging.Start(cmd.Context())
			klog.SetSlogLogger(o.Log.With("of", "client-go"))
			listener, err := listen.TCP("listen for Prometheus and probes", o.listen)
			if err != nil {
				return err
			}
			o.Listener = listener
			return kube.Run(cmd.Context(), o.Options)
		},
	}
	flags := root.Flags()
	flags.StringSliceVar(&o.controllers, "controller", nil, "HOST[:PORT] of controllers, separated by commas: the first that answers is asked (port: "+command.ControllerPort+")")
	flags.StringVar(&o.tlsDir, "tls-dir", "/etc/ballast/tls", "directory of ca.crt, NAME.crt and NAME.key")
	flags.StringVar(&o.tlsName, "tls-name", "", "NAME of the certificate (default: the only one for role source in --tls-dir)")
	flags.StringArrayVar(&o.pools, "pool", nil, "addresses that Services get, of both families, separated by commas, with a name (default: default); can be repeated")
	flags.StringVar(&o.config, "config", "", "`FILE` with pools, class and prefix, instead of these flags")
	flags.StringVar(&o.Mapping.Class, "class", mapping.DefaultClass, "spec.loadBalancerClass of the Services to keep")
	flags.StringVar(&o.Mapping.Prefix, "prefix", "", "before the names of services, if clusters share the fleet (default: none)")
	o.server.flags(flags)
	flags.StringVar(&o.Namespace, "lease-namespace", "", "namespace of the lease (default: that of this pod)")
	flags.StringVar(&o.Lease, "lease", "ballast-kube", "`NAME` of the lease: of the replicas that have it, one changes the fleet")
	flags.StringVar(&o.Identity, "identity", "", "name of this replica in the lease (default: that of this host)")
	flags.DurationVar(&o.Resync, "resync", 30*time.Second, "time without a change after which the fleet is read again")
	flags.StringVar(&o.listen, "listen", ":9438", "address:port for /metrics, /healthz and /readyz; empty: none")
	logging = command.LogFlags(flags)
	root.AddCommand(certify(build), enrol(build))
	own, err := fs.Sub(texts, "help")
	if err != nil {
		panic(err)
	}
	help.Add(root, own)
	command.Strict(root)
	return root
}

// Main runs a command line and returns its exit status.
func Main(build string, arguments []string, stderr io.Writer) int {
	return command.Main(Root(build), arguments, stderr)
}

// complete opens what the command line names.
func (o *options) complete(cmd *cobra.Command) (err error) {
	if err := cmp.Or(command.CheckListen("listen", o.listen), o.readMapping(cmd)); err != nil {
		return err
	}
	if o.Resync < time.Second {
		return command.Usage("--resync %s: use 1s or more", o.Resync)
	}
	if len(o.controllers) == 0 {
		return command.Usage("required flag \"controller\" not set: name the controllers of the fleet")
	}
	controllers, err := command.Controllers("controller", o.controllers)
	if err != nil {
		return err
	}
	if o.Credentials, err = pki.Load(o.tlsDir, o.tlsName, pki.Source); err != nil {
		return err
	}
	o.Mapping.Owner = o.Credentials.Identity().Name
	o.Options.Fleet = api.NewFleetClient(controllers, o.Credentials.Client())
	config, err := o.server.connect(o.Version)
	if err != nil {
		return err
	}
	if o.Kubernetes, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if o.Gateways, err = versioned.NewForConfig(config); err != nil {
		return err
	}
	if o.Identity == "" {
		if o.Identity, err = os.Hostname(); err != nil {
			return err
		}
	}
	o.Namespace, err = namespace("lease-namespace", o.Namespace)
	return err
}

// namespace is the one that a flag gives, or this pod's.
func namespace(flag, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	own, err := os.ReadFile(namespaceFile)
	if err != nil {
		return "", command.Usage("--%s is not given, and this is no pod: name the namespace", flag)
	}
	return strings.TrimSpace(string(own)), nil
}

// readMapping takes the flags, or the file in their place.
func (o *options) readMapping(cmd *cobra.Command) (err error) {
	if o.config != "" {
		for _, flag := range []string{"pool", "class", "prefix"} {
			if cmd.Flags().Changed(flag) {
				return command.Usage("--%s and --config are two places for one thing: use one of them", flag)
			}
		}
		if o.Mapping, err = readConfig(o.config); err != nil {
			return err
		}
		o.Mapping.Class = cmp.Or(o.Mapping.Class, mapping.DefaultClass)
		return nil
	}
	if o.Mapping.Pools, err = parsePools(o.pools); err == nil {
		err = check(&o.Mapping)
	}
	if err != nil {
		return command.Usage("%w", err)
	}
	return nil
}

// connect is to the API server: by --kubeconfig or KUBECONFIG, else as a pod.
func (s *server) connect(version string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: s.context}).ClientConfig()
	if err != nil && s.kubeconfig == "" && s.context == "" && (clientcmd.IsEmptyConfig(err) || errors.Is(err, rest.ErrNotInCluster)) {
		return nil, command.Usage("no API server is known: give --kubeconfig, or run this in a pod")
	}
	if err != nil {
		return nil, fmt.Errorf("read how to reach the API server: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent = requestRate, requestBurst, "ballast-kube/"+version
	return config, nil
}
