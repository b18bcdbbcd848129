// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Linked into address-sanitized tests only: what MPI loads stays loaded, so that its leaks are
// reported with the name of a module, by which lsan.supp tells them from ours.
extern "C" int dlclose(void*) { return 0; }
