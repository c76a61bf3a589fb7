// What the theme leaves out: levels of headings in the navigation, and keyboard focus of what scrolls sideways.
document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll('.caption[role="heading"]')) one.setAttribute("aria-level", "2");
  for (const one of document.querySelectorAll(".table-wrapper, .highlight pre, .sidebar-scroll, .toc-scroll")) one.tabIndex = 0;
});
