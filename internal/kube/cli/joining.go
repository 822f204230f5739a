// ballast-kube certify and ballast-kube enrol, which run beside a controller that is a pod.
package cli

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/kube/joining"
)

// pod is a controller that is a pod, as flags say it.
type pod struct {
	joining.Controller
	server server
}

func (p *pod) flags(flags *pflag.FlagSet) {
	p.server.flags(flags)
	flags.StringVar(&p.Namespace, "namespace", "", "namespace of the Secrets (default: that of this pod)")
	flags.StringVar(&p.Release, "release", "ballast", "what the names of the Secrets begin with")
	flags.StringVar(&p.Name, "name", "", "`NAME` of the controller (default: that of this host)")
	flags.StringSliceVar(&p.DNS, "dns", nil, "`NAME` that nodes and other controllers reach it by, may be repeated")
	flags.StringVar(&p.TLSDir, "tls-dir", "/etc/ballast/tls", "`DIRECTORY` of ca.crt, NAME.crt and NAME.key, which is memory")
}

// complete opens what flags name.
func (p *pod) complete(version string) (err error) {
	if p.Name == "" {
		if p.Name, err = os.Hostname(); err != nil {
			return err
		}
	}
	if p.Namespace, err = namespace("namespace", p.Namespace); err != nil {
		return err
	}
	config, err := p.server.connect(version)
	if err != nil {
		return err
	}
	p.Kubernetes, err = kubernetes.NewForConfig(config)
	return err
}

// certify makes `ballast-kube certify`.
func certify(version string) *cobra.Command {
	p := pod{}
	cmd := &cobra.Command{
		Use: "certify", Short: "Write the certificate of a controller that is a pod",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.complete(version); err != nil {
				return err
			}
			return p.Certify(cmd.Context())
		},
	}
	flags := cmd.Flags()
	p.flags(flags)
	flags.StringVar(&p.First, "first", "", "`NAME` of the controller that begins the fleet: it does not start without state once that has begun")
	flags.StringVar(&p.DataDir, "data-dir", "/var/lib/ballast/controller", "`DIRECTORY` of the controller's state")
	return cmd
}

// enrol makes `ballast-kube enrol`.
func enrol(version string) *cobra.Command {
	p := pod{}
	var logging *command.Logging
	var selector, announce, runDir, source string
	cmd := &cobra.Command{
		Use: "enrol", Short: "Have the pods of nodes join the fleet",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.complete(version); err != nil {
				return err
			}
			local := api.NewClient(api.SocketPath(runDir, p.Name))
			e := &joining.Enrol{Controller: &p.Controller, Fleet: local.Fleet(), Enrolment: local.Enrolment(), Source: source, Log: logging.Start(cmd.Context())}
			klog.SetSlogLogger(e.Log.With("of", "client-go"))
			return run(cmd, e, selector, announce)
		},
	}
	flags := cmd.Flags()
	p.flags(flags)
	flags.StringVar(&selector, "selector", "app.kubernetes.io/component=node", "labels of the pods of nodes")
	flags.StringVar(&announce, "node", "", "configuration `FILE` with one node: each load balancer gets its bgp or l2 (default: none)")
	flags.StringVar(&runDir, "run-dir", api.RunDir, "directory of the controller's socket")
	flags.StringVar(&source, "source", "kube", "`NAME` of the certificate of ballast-kube, the owner of its services")
	logging = command.LogFlags(flags)
	return cmd
}

func run(cmd *cobra.Command, e *joining.Enrol, selector, announce string) (err error) {
	if e.Selector, err = labels.Parse(selector); err != nil || e.Selector.Empty() {
		return command.Usage("--selector %q: use labels like app=ballast, with commas between them", selector)
	}
	if announce != "" {
		file, err := config.Load(announce)
		if err != nil {
			return err
		}
		if len(file.Fleet.Nodes) != 1 {
			return fmt.Errorf("%s has %d nodes: give one, whose name does not matter", announce, len(file.Fleet.Nodes))
		}
		e.Node = &file.Fleet.Nodes[0]
	}
	e.Log.Info("enrolling", slog.String("pods", strings.TrimSpace(e.Namespace+" "+selector)))
	return e.Run(cmd.Context())
}
