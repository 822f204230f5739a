package model

import "net/netip"

// VIPAnnouncement is whether load balancers announce the VIPs of a service, whichever way they do: by BGP, or on a segment (L2).
type VIPAnnouncement uint8

// On a segment, VIPAuto leaves a VIP that the fleet has never had to the host that answers for it; VIPForce takes it all the same.
const (
	VIPAuto  VIPAnnouncement = 0
	VIPOff   VIPAnnouncement = 1 // nobody announces it, and what comes in is forwarded as ever
	VIPForce VIPAnnouncement = 2
)

var vipAnnouncementNames = map[VIPAnnouncement]string{VIPAuto: "auto", VIPOff: "off", VIPForce: "force"}

func (v VIPAnnouncement) String() string               { return nameOf(vipAnnouncementNames, v) }
func (v VIPAnnouncement) MarshalText() ([]byte, error) { return marshal(vipAnnouncementNames, v) }
func (v *VIPAnnouncement) UnmarshalText(text []byte) error {
	return unmarshal(vipAnnouncementNames, v, text)
}

// Announcements are the VIPs that are not announced as VIPAuto says, and a service that says so. One service of a VIP is enough, and VIPOff counts more.
func (f *Fleet) Announcements() map[netip.Addr]Announcement {
	list := map[netip.Addr]Announcement{}
	for i := range f.Services {
		s := &f.Services[i]
		if s.Announce == VIPAuto || s.Functions() {
			continue
		}
		for _, vip := range s.VIPs() {
			if list[vip].How != VIPOff {
				list[vip] = Announcement{s.Announce, s.Name}
			}
		}
	}
	return list
}

// Announcement is how a VIP is announced, and the service that says so.
type Announcement struct {
	How     VIPAnnouncement
	Service string
}
