// Where the state is kept.
package controller

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/bootstrap"
	"github.com/ballast-lb/ballast/internal/controller/members"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

const keepAlive = 30 * time.Second // of connections between stores, as etcd has it

// openedStore is a store with what is to be done about it.
type openedStore struct {
	store.Store
	cluster *etcd.Store // in this process; nil: the state is kept elsewhere
	close   func() error
}

func openStore(
	ctx context.Context, o *Options, credentials *pki.Credentials, address string, ports *bootstrap.Ports,
) (openedStore, error) {
	var s *etcd.Store
	var err error
	switch {
	case o.Store != nil:
		return openedStore{Store: o.Store, close: func() error { return nil }}, nil
	case len(o.Etcd) > 0 && o.DataDir != "":
		return openedStore{}, errors.New("two stores: give --data-dir or --etcd, not both")
	case len(o.Etcd) > 0:
		s, err = etcd.Connect(ctx, etcd.ConnectOptions{
			Endpoints: o.Etcd, CA: o.EtcdCA, Certificate: o.EtcdCert, Key: o.EtcdKey, Prefix: o.EtcdPrefix, Log: o.Log,
		})
		if err != nil {
			return openedStore{}, err
		}
		return openedStore{Store: s, close: s.Close}, nil
	case o.DataDir == "":
		return openedStore{}, errors.New("no store: give --data-dir, or --etcd")
	}
	peering := &etcd.Peering{Address: address, Serve: ports.OpenStore}
	peering.CA, peering.Certificate, peering.Key = credentials.Files()
	peering.Dial = func(ctx context.Context, name, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		dialer := &net.Dialer{KeepAlive: keepAlive}
		return credentials.HeldDialer(credentials.At(pki.Controller, name, host), dialer.DialContext)(ctx, "tcp", address)
	}
	peering.Caller = func(r *http.Request) string {
		who, _ := hub.Certified(r) // the port for nodes has verified it
		return who.Name
	}
	if len(o.Join) > 0 {
		others := api.NewControllersClient(o.Join, credentials.Client())
		peering.Join = func(ctx context.Context) ([]etcd.Peer, error) {
			return members.Join(ctx, o.Log, others, address, ports.Nonce())
		}
		peering.List = func(ctx context.Context) ([]etcd.Peer, error) { return members.List(ctx, others) }
	}
	s, err = etcd.Embed(ctx, etcd.EmbedOptions{
		DataDir: o.DataDir, Name: credentials.Identity().Name, Peering: peering, Log: o.Log,
		Ends: func(why error) { o.noteEnd(credentials, why) },
	})
	if err != nil {
		return openedStore{}, err
	}
	return openedStore{s, s, s.Close}, nil
}
