package siphash

import "testing"

// Message i is the bytes 0, 1, .. i-1. Keyed: key 00 01 .. 0f, as in the appendix of the SipHash paper and in the tests of Rust's
// core library. Unkeyed: zero key, as published with the reference implementation's SipHash-1-3 and as Rust's DefaultHasher.
var keyed = [64]uint64{
	0xabac0158050fc4dc, 0xc9f49bf37d57ca93, 0x82cb9b024dc7d44d, 0x8bf80ab8e7ddf7fb,
	0xcf75576088d38328, 0xdef9d52f49533b67, 0xc50d2b50c59f22a7, 0xd3927d989bb11140,
	0x369095118d299a8e, 0x25a48eb36c063de4, 0x79de85ee92ff097f, 0x70c118c1f94dc352,
	0x78a384b157b4d9a2, 0x306f760c1229ffa7, 0x605aa111c0f95d34, 0xd320d86d2a519956,
	0xcc4fdd1a7d908b66, 0x9cf2689063dbd80c, 0x8ffc389cb473e63e, 0xf21f9de58d297d1c,
	0xc0dc2f46a6cce040, 0xb992abfe2b45f844, 0x7ffe7b9ba320872e, 0x525a0e7fdae6c123,
	0xf464aeb267349c8c, 0x45cd5928705b0979, 0x3a3e35e3ca9913a5, 0xa91dc74e4ade3b35,
	0xfb0bed02ef6cd00d, 0x88d93cb44ab1e1f4, 0x540f11d643c5e663, 0x2370dd1f8c21d1bc,
	0x81157b6c16a7b60d, 0x4d54b9e57a8ff9bf, 0x759f12781f2a753e, 0xcea1a3bebf186b91,
	0x2cf508d3ada26206, 0xb6101c2da3c33057, 0xb3f47496ae3a36a1, 0x626b57547b108392,
	0xc1d2363299e41531, 0x667cc1923f1ad944, 0x65704ffec8138825, 0x24f280d1c28949a6,
	0xc2ca1cedfaf8876b, 0xc2164bfc9f042196, 0xa16e9c9368b1d623, 0x49fb169c8b5114fd,
	0x9f3143f8df074c46, 0xc6fdaf2412cc86b3, 0x7eaf49d10a52098f, 0x1cf313559d292f9a,
	0xc44a30dda2f41f12, 0x36fae98943a71ed0, 0x318fb34c73f0bce6, 0xa27abf3670a7e980,
	0xb4bcc0db243c6d75, 0x23f8d852fdb71513, 0x8f035f4da67d8a08, 0xd89cd0e5b7e8f148,
	0xf6f4e6bcf7a644ee, 0xaec59ad80f1837f2, 0xc3b2f6154b6694e0, 0x9d199062b7bbb3a8,
}

var unkeyed = [64]uint64{
	0xd1fba762150c532c, 0x68a914128e01e473, 0x010bac45c41e3669, 0x4d4c9a4a8ef6e0ad,
	0x7cc43f98813e4dbd, 0x5abe2169dff36275, 0xe3c25f87624f1cdb, 0x2f098ab0c751325a,
	0xead411e67ebe2eea, 0x75927f9d95124362, 0xaf9f77a65ab51a1d, 0xfe64ce8b6617fcff,
	0xa6baf4fb0f9fe1c2, 0xa0cf3211850f8e0d, 0x7f86049379fbfe67, 0xf30eb725bb91c9ea,
	0x8972188433a5c5b7, 0x4883c49a2c009c1d, 0xadc2c0b63044067d, 0x091f4a3329f87d19,
	0x639e355ae68c0100, 0xb17bef2cb5213239, 0xf8aeb1066236ccfe, 0x37332b1389daa4ff,
	0x31185a47af932f3a, 0xebf352e82ae23e2f, 0xed36ff242fe478b2, 0x2454d97d299299df,
	0x8cd57fe8130d0ac7, 0xbe98eb2faf0a0e85, 0xd427c34ee09470c6, 0x169739443111d49b,
	0x31ef8061c910629b, 0x7fb71d24dfa4c9f6, 0x92771f49e836d389, 0x3c393cf6f0853bc3,
	0xac77921fcc642bd3, 0x422a9751192ff266, 0xc680ae8a8c584ddf, 0x6c76b6d34bb6d26b,
	0x95bc321ab41d8206, 0x908a3a97a6d37669, 0xfcaf3c64874dd0b4, 0xf689479b32b84a44,
	0xd857641079efd1fd, 0x8b581578722633f7, 0x83cb09d35ea7bcd4, 0x8485f7f5ae725a0d,
	0xfe1f2445ba50237f, 0x23cece041d7866b0, 0x416687480b336c09, 0xf15960da7e7f3892,
	0xded6177b9826835a, 0xf80dae51668be6be, 0x17ecc6ee6647df18, 0x5220d642b4a52110,
	0xa4f0cf4ba4adc016, 0xe5125bb26d1f2976, 0x851b0e75f580d256, 0x12605250a37e39ac,
	0xd95a713568daebf1, 0xcdcf4a42ec0dd605, 0xa5c708712b617164, 0x385d3e39e5f37359,
}

func TestSumsEqualThePublishedVectors(t *testing.T) {
	message := make([]byte, 0, 64)
	for i := range 64 {
		if got := Sum13(0x0706050403020100, 0x0f0e0d0c0b0a0908, message); got != keyed[i] {
			t.Errorf("keyed, %d bytes: have %#016x, want %#016x", i, got, keyed[i])
		}
		if got := Sum13(0, 0, message); got != unkeyed[i] {
			t.Errorf("unkeyed, %d bytes: have %#016x, want %#016x", i, got, unkeyed[i])
		}
		message = append(message, byte(i))
	}
}

func BenchmarkFlowOfIPv4(b *testing.B) {
	message := make([]byte, 8)
	for b.Loop() {
		Sum13(1, 2, message)
	}
}

// The example in appendix A of the paper.
func TestSipHash24OfThePaper(t *testing.T) {
	message := make([]byte, 15)
	for i := range message {
		message[i] = byte(i)
	}
	if got := Sum24(0x0706050403020100, 0x0f0e0d0c0b0a0908, message); got != 0xa129ca6149be45e5 {
		t.Errorf("%#x", got)
	}
}
