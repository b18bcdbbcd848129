// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Linked into address-sanitized tests only. Modules that MPI loads stay loaded, so that their leaks
// are reported with a module name, by which lsan.supp tells them from ours.
extern "C" int dlclose(void*) { return 0; }
