use super::*;

#[test]
fn msn_of_24_bits_wraps() {
    assert_eq!(Msn24::ZERO.next(), Msn24::new(1));
    assert_eq!(Msn24::new(0x00ff_ffff).next(), Msn24::ZERO);
    assert_eq!(Msn24::ZERO.distance_from(Msn24::new(0x00ff_ffff)), 1);
    assert_eq!(Msn24::new(0x00ff_ffff).distance_from(Msn24::ZERO), -1);
}

#[test]
fn addresses_do_not_wrap() {
    assert_eq!(VirtualAddress::new(u64::MAX).checked_add(1), None);
    assert_eq!(
        VirtualAddress::new(7).checked_add(1),
        Some(VirtualAddress::new(8))
    );
}

#[test]
fn partition_keys() {
    let limited = Pkey::new(0x7fff);
    assert!(Pkey::DEFAULT.is_full_member() && !limited.is_full_member());
    assert!(Pkey::DEFAULT.matches(Pkey::DEFAULT));
    assert!(Pkey::DEFAULT.matches(limited) && limited.matches(Pkey::DEFAULT));
    assert!(!limited.matches(limited));
    assert!(!Pkey::DEFAULT.matches(Pkey::new(0xfffe)));
}

#[test]
fn queue_keys() {
    assert!(Qkey::GSI.is_controlled());
    assert!(!Qkey::RDMA_UDP.is_controlled());
}

#[test]
fn narrow_numbers_drop_what_does_not_fit() {
    assert_eq!(FlowLabel::new(0xfff1_2345).get(), 0x1_2345);
    assert_eq!(Msn24::new(0xff12_3456).get(), 0x12_3456);
    assert_eq!(Eecn::new(0xff12_3456).get(), 0x12_3456);
}

#[test]
fn they_print_as_the_field_does() {
    assert_eq!(
        Guid::new(0x5054_00ff_fe00_0003).to_string(),
        "5054:00ff:fe00:0003"
    );
    assert_eq!(format!("{:?}", Guid::new(1)), "Guid(0000:0000:0000:0001)");
    assert_eq!(Qkey::GSI.to_string(), "0x80010000");
    assert_eq!(Pkey::DEFAULT.to_string(), "0xffff");
    assert_eq!(FlowLabel::new(0xbb11f).to_string(), "0xbb11f");
    assert_eq!(
        ServiceId::new(0x0106_1c06).to_string(),
        "0x0000000001061c06"
    );
    assert_eq!(format!("{:?}", CommId::new(7)), "CommId(0x00000007)");
}
