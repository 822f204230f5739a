package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
)

// A kubelet runs the pods of the chart as their specifications say, without a container runtime: files of images, volumes, users, capabilities,
// commands, environment, probes and restarts.
type kubelet struct {
	*cluster
	namespace string
	hosts     string // its /etc/hosts: what the cluster's DNS would answer
}

// A runningPod is one that a kubelet runs.
type runningPod struct {
	*kubelet
	*core.Pod
	space, host string // network, and the host whose paths it mounts
	address     string
	cancel      context.CancelFunc
	done        chan struct{}
	processes   map[string]*process // by container
	texts       map[string]struct{} // that its containers ended with
	lock        sync.Mutex
}

// run makes the API server know a pod, and runs it until stop, or the test's end.
func (k *kubelet) run(pod *core.Pod, space, host, address string) *runningPod {
	k.Helper()
	pod.Namespace = k.namespace
	pod.Spec.NodeName = host
	made, err := k.CoreV1().Pods(k.namespace).Create(background, pod, meta.CreateOptions{})
	k.must(err)
	ctx, cancel := context.WithCancel(background)
	p := &runningPod{kubelet: k, Pod: made, space: space, host: host, address: address, cancel: cancel, done: make(chan struct{}), processes: map[string]*process{}, texts: map[string]struct{}{}}
	go func() {
		defer close(p.done)
		if err := p.live(ctx); err != nil && ctx.Err() == nil {
			k.Errorf("pod %s: %v", pod.Name, err)
		}
	}()
	k.Cleanup(p.stop)
	return p
}

// stop ends a pod as its deletion does: SIGTERM, then SIGKILL.
func (p *runningPod) stop() {
	if p.cancel(); p.finished() {
		return
	}
	<-p.done
	_ = p.CoreV1().Pods(p.Namespace).Delete(background, p.Pod.Name, meta.DeleteOptions{GracePeriodSeconds: new(int64)})
}

func (p *runningPod) finished() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// restartPause is between starts of a container that has ended.
const restartPause = time.Second

func (p *runningPod) live(ctx context.Context) error {
	for i := range p.Spec.InitContainers {
		for ctx.Err() == nil {
			code, err := p.once(ctx, &p.Spec.InitContainers[i])
			if err != nil {
				return err
			}
			if code == 0 {
				break
			}
			state := core.ContainerState{Terminated: &core.ContainerStateTerminated{ExitCode: int32(code)}}
			p.status(func(s *core.PodStatus) {
				s.InitContainerStatuses = []core.ContainerStatus{{Name: p.Spec.InitContainers[i].Name, LastTerminationState: state, State: state}}
			})
			pauseFor(ctx, restartPause)
		}
	}
	p.status(func(s *core.PodStatus) {
		s.Conditions = append(s.Conditions, core.PodCondition{Type: core.PodInitialized, Status: core.ConditionTrue})
		s.Phase = core.PodRunning
	})
	var running sync.WaitGroup
	for i := range p.Spec.Containers {
		running.Go(func() {
			for ctx.Err() == nil {
				code, err := p.once(ctx, &p.Spec.Containers[i])
				if err != nil && ctx.Err() == nil {
					p.Errorf("pod %s: %v", p.Name, err)
					return
				}
				if ctx.Err() == nil && code == 0 {
					p.Errorf("pod %s: container %s has ended", p.Name, p.Spec.Containers[i].Name)
				}
				pauseFor(ctx, restartPause)
			}
		})
	}
	running.Wait()
	return nil
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (p *runningPod) status(change func(*core.PodStatus)) {
	pods := p.CoreV1().Pods(p.Namespace)
	now, err := pods.Get(background, p.Name, meta.GetOptions{})
	if err == nil {
		change(&now.Status)
		_, err = pods.UpdateStatus(background, now, meta.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		p.Errorf("status of pod %s: %v", p.Name, err)
	}
}

// once runs a container to its end.
func (p *runningPod) once(ctx context.Context, spec *core.Container) (code int, err error) {
	c, err := p.container(ctx, spec)
	if err != nil || ctx.Err() != nil {
		return 0, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	r := &process{output: &output{}, command: exec.Command(self), ended: make(chan struct{}), where: p.Name}
	r.command.Stdout, r.command.Stderr = r.output, r.output
	r.command.Env = []string{containerVariable + "=" + string(text)}
	r.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	if err := p.spaces[p.space].Start(r.command); err != nil {
		return 0, err
	}
	p.lock.Lock()
	p.processes[spec.Name] = r
	p.lock.Unlock()
	go func() {
		defer close(r.ended)
		_ = r.command.Wait()
	}()
	select {
	case <-r.ended:
	case <-ctx.Done():
		_ = r.command.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.ended:
		case <-time.After(time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second):
			r.end(syscall.SIGKILL)
			p.Errorf("%s of pod %s did not end by SIGTERM: %s", spec.Name, p.Name, r.last())
		}
	}
	if code = r.command.ProcessState.ExitCode(); code != 0 && ctx.Err() == nil && p.says(r.last()) {
		p.Logf("%s of pod %s: status %d: %s", spec.Name, p.Name, code, r.last())
	}
	return code, nil
}

// says reports whether a text is new.
func (p *runningPod) says(text string) bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	_, known := p.texts[text]
	p.texts[text] = struct{}{}
	return !known
}

// said is the end of what a container has said.
func (p *runningPod) said(name string) string {
	p.lock.Lock()
	defer p.lock.Unlock()
	if r := p.processes[name]; r != nil {
		return r.last()
	}
	return ""
}

// container is one as a runtime gets it, its volumes as they are now. It waits for Secrets that there are not.
func (p *runningPod) container(ctx context.Context, spec *core.Container) (*container, error) {
	program := programOf(spec.Image)
	root := p.cluster.path(filepath.Join("pods", p.Name, spec.Name))
	c := &container{Root: root, Command: append([]string{"/usr/bin/" + program}, spec.Args...), Environment: []string{"PATH=/usr/bin"}}
	for _, dir := range []string{"usr/bin", "etc/ballast", "run", "tmp", "var/lib", "proc", "sys", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(root, "usr/bin", program), nil, 0o755), os.WriteFile(filepath.Join(root, "etc/hosts"), []byte(p.hosts), 0o644)); err != nil {
		return nil, err
	}
	binary, err := filepath.Abs("../../bin/" + program)
	if err != nil {
		return nil, err
	}
	c.Mounts = append(c.Mounts, volume{binary, "/usr/bin/" + program, false})
	for _, variable := range spec.Env {
		value := map[string]string{"spec.nodeName": p.Spec.NodeName, "metadata.name": p.Name, "status.hostIP": p.address}[variable.ValueFrom.FieldRef.FieldPath]
		c.Environment = append(c.Environment, variable.Name+"="+value)
		for i := range c.Command {
			c.Command[i] = strings.ReplaceAll(c.Command[i], "$("+variable.Name+")", value)
		}
	}
	c.user(p.Spec.SecurityContext, spec.SecurityContext)
	mounts := slices.SortedFunc(slices.Values(spec.VolumeMounts), func(a, b core.VolumeMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	for _, mount := range mounts {
		i := slices.IndexFunc(p.Spec.Volumes, func(v core.Volume) bool { return v.Name == mount.Name })
		from, err := p.volume(ctx, &p.Spec.Volumes[i], c)
		if err != nil {
			return nil, err
		}
		// A mount point below another one is made in that.
		point := filepath.Join(root, mount.MountPath)
		for _, outer := range c.Mounts {
			if below, ok := strings.CutPrefix(mount.MountPath, outer.To+"/"); ok {
				point = filepath.Join(outer.From, below)
			}
		}
		if err := os.MkdirAll(point, 0o755); err != nil {
			return nil, err
		}
		c.Mounts = append(c.Mounts, volume{from, mount.MountPath, mount.ReadOnly})
	}
	if p.Spec.AutomountServiceAccountToken == nil {
		from, err := p.account(ctx, root)
		if err != nil {
			return nil, err
		}
		c.Mounts = append(c.Mounts, from)
		c.Environment = append(c.Environment, "KUBERNETES_SERVICE_HOST="+controller, "KUBERNETES_SERVICE_PORT=7443")
	}
	return c, nil
}

// user is whom a container runs as: what it says comes before what its pod says.
func (c *container) user(pod *core.PodSecurityContext, own *core.SecurityContext) {
	if pod != nil && pod.RunAsUser != nil {
		c.UID, c.GID = int(*pod.RunAsUser), int(*pod.RunAsGroup)
	}
	if own.RunAsUser != nil {
		c.UID = int(*own.RunAsUser)
	}
	c.ReadOnly = *own.ReadOnlyRootFilesystem
	for _, capability := range own.Capabilities.Add {
		c.Capabilities = append(c.Capabilities, string(capability))
	}
}

// account is the token of the pod's account, and how the API server is known.
func (p *runningPod) account(ctx context.Context, root string) (volume, error) {
	token, err := p.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, &authentication.TokenRequest{}, meta.CreateOptions{})
	if err != nil {
		return volume{}, err
	}
	authority, err := os.ReadFile(p.cluster.path("certs/apiserver.crt"))
	if err != nil {
		return volume{}, err
	}
	v := volume{p.cluster.path(filepath.Join("accounts", p.Name)), "/var/run/secrets/kubernetes.io/serviceaccount", true}
	return v, errors.Join(os.MkdirAll(filepath.Join(root, v.To), 0o755), lay(v.From, map[string][]byte{"token": []byte(token.Status.Token), "ca.crt": authority, "namespace": []byte(p.Namespace)}, 0o644, 0))
}

// volume is where the files of a volume are.
func (p *runningPod) volume(ctx context.Context, v *core.Volume, c *container) (string, error) {
	own := p.cluster.path(filepath.Join("volumes", p.Name, v.Name))
	switch {
	case v.HostPath != nil:
		path := p.cluster.path(filepath.Join("hosts", p.host, v.HostPath.Path))
		return path, os.MkdirAll(path, 0o755)
	case v.Secret != nil:
		for {
			secret, err := p.CoreV1().Secrets(p.Namespace).Get(ctx, v.Secret.SecretName, meta.GetOptions{})
			if err == nil {
				return own, lay(own, secret.Data, fs.FileMode(*v.Secret.DefaultMode), c.GID)
			}
			if !apierrors.IsNotFound(err) {
				return "", err
			}
			pauseFor(ctx, restartPause)
		}
	case v.ConfigMap != nil:
		config, err := p.CoreV1().ConfigMaps(p.Namespace).Get(ctx, v.ConfigMap.Name, meta.GetOptions{})
		if err != nil {
			return "", err
		}
		files := map[string][]byte{}
		for name, text := range config.Data {
			files[name] = []byte(text)
		}
		return own, lay(own, files, 0o644, 0)
	}
	// emptyDir and claims are the group's
	if err := os.MkdirAll(own, 0o2775); err != nil {
		return "", err
	}
	return own, errors.Join(os.Chown(own, 0, c.GID), os.Chmod(own, 0o2775|fs.ModeSetgid))
}

// lay has exactly these files in a directory.
func lay(dir string, files map[string][]byte, mode fs.FileMode, group int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if _, wanted := files[entry.Name()]; !wanted {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chown(path, 0, group), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until the readiness probes of a pod's containers are answered by 200.
func (p *runningPod) awaitReady() {
	p.Helper()
	for i := range p.Spec.Containers {
		spec := &p.Spec.Containers[i]
		if spec.ReadinessProbe == nil {
			continue
		}
		probe := spec.ReadinessProbe.HTTPGet
		port := spec.Ports[slices.IndexFunc(spec.Ports, func(port core.ContainerPort) bool { return port.Name == probe.Port.StrVal })].ContainerPort
		client := http.Client{Transport: &http.Transport{DialContext: p.dial("control"), DisableKeepAlives: true}, Timeout: time.Second}
		await.Nil(p.T, fmt.Sprintf("%s of pod %s is ready", spec.Name, p.Name), func() error {
			response, err := client.Get(fmt.Sprintf("http://%s:%d%s", p.address, port, probe.Path))
			if err != nil {
				return fmt.Errorf("%w; it says %s", err, p.said(spec.Name))
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				text, _ := io.ReadAll(response.Body)
				return fmt.Errorf("%s: %s", response.Status, text)
			}
			return nil
		})
	}
}
