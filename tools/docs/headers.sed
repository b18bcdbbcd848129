# Doxygen reads the headers through these edits.
# Programs do not write the version's inline namespace.
s/^inline namespace v0 \{\}$//
s/^namespace hvd::inline v0::(\w+) \{/namespace hvd { namespace \1 {/
s/^(\/\*\* @\} \*\/ )?\}  \/\/ namespace hvd::inline v0::\w+/\1}}/
s/^namespace hvd::inline v0 \{/namespace hvd {/
# A communicator inherits its members from class templates in detail. The reference shows plain classes outside of it.
s/public (detail::)?([a-z_]+_calls|device_[a-z]+)<.*>(,| \{)$/public \2\3/
/^\/\/\/ The members of a communicator/,/^\};/ {
  s/^(\/\/\/ The members of a communicator.*)/} \1/
  s/^template <class Comm.*>$//
  s/^\};/}; namespace detail {/
}
