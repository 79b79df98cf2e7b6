"""Lists large cities and regions without a time zone of their own, by the zone that they use.

The IANA list names one city for each zone, so it lacks most large cities. Names are in English, without accents. A table of
countries comes with the IANA list.
"""

from __future__ import annotations

CITIES = {
    # Asia
    "Asia/Kolkata": (
        "Mumbai, Bombay, Delhi, New Delhi, Bangalore, Bengaluru, Chennai, Madras, Pune, Ahmedabad, Surat, Jaipur, "
        "Lucknow, Kanpur, Nagpur, Indore, Kochi, Gurgaon, Gurugram, Noida"
    ),
    "Asia/Shanghai": (
        "Beijing, Peking, Shenzhen, Guangzhou, Canton, Tianjin, Wuhan, Chengdu, Hangzhou, Nanjing, Xian, Suzhou, "
        "Qingdao, Dalian, Shenyang"
    ),
    "Asia/Tokyo": "Osaka, Kyoto, Yokohama, Nagoya, Sapporo, Fukuoka, Kobe, Hiroshima, Okinawa",
    "Asia/Seoul": "Busan, Incheon, Daegu, Daejeon",
    "Asia/Ho_Chi_Minh": "Hanoi, Ha Noi, Ho Chi Minh City, HCMC, Da Nang, Danang, Hai Phong, Hue, Can Tho, Nha Trang",
    "Asia/Bangkok": "Chiang Mai, Phuket, Pattaya",
    "Asia/Jakarta": "Bandung, Surabaya, Medan, Semarang, Yogyakarta",
    "Asia/Makassar": "Bali, Denpasar",
    "Asia/Manila": "Quezon City, Cebu, Davao, Makati",
    "Asia/Kuala_Lumpur": "Penang, George Town, Johor Bahru",
    "Asia/Yangon": "Mandalay, Naypyidaw",
    "Asia/Dhaka": "Chittagong, Chattogram",
    "Asia/Karachi": "Lahore, Islamabad, Rawalpindi, Faisalabad, Peshawar",
    "Asia/Dubai": "Abu Dhabi, Sharjah",
    "Asia/Riyadh": "Jeddah, Mecca, Medina, Dammam",
    "Asia/Qatar": "Doha",
    "Asia/Jerusalem": "Haifa",
    "Asia/Tehran": "Mashhad, Isfahan, Shiraz, Tabriz",
    "Asia/Baghdad": "Basra, Mosul, Erbil",
    "Asia/Almaty": "Astana, Nur-Sultan, Shymkent",
    "Asia/Damascus": "Aleppo",
    "Asia/Phnom_Penh": "Siem Reap",
    # Europe
    "Europe/Berlin": (
        "Munich, Muenchen, Munchen, Hamburg, Frankfurt, Cologne, Koeln, Koln, Stuttgart, Dusseldorf, Duesseldorf, "
        "Leipzig, Dresden, Bremen, Hanover, Hannover, Nuremberg, Nurnberg, Dortmund, Essen, Bonn, Freiburg, Karlsruhe, "
        "Mannheim, Potsdam, Heidelberg"
    ),
    "Europe/Zurich": "Geneva, Geneve, Genf, Basel, Bern, Lausanne",
    "Europe/Vienna": "Wien, Salzburg, Graz, Linz, Innsbruck",
    "Europe/Paris": "Lyon, Marseille, Toulouse, Nice, Bordeaux, Lille, Strasbourg, Nantes",
    "Europe/London": (
        "Manchester, Edinburgh, Glasgow, Liverpool, Leeds, Bristol, Sheffield, Cardiff, Cambridge, Oxford, England, "
        "Scotland, Wales"
    ),
    "Europe/Dublin": "Cork, Galway",
    "Europe/Madrid": "Barcelona, Seville, Sevilla, Bilbao, Malaga, Zaragoza",
    "Europe/Rome": "Milan, Milano, Roma, Naples, Napoli, Turin, Torino, Florence, Bologna, Venice, Palermo, Genoa",
    "Europe/Amsterdam": "Rotterdam, The Hague, Den Haag, Utrecht, Eindhoven, Holland",
    "Europe/Brussels": "Antwerp, Ghent, Bruges",
    "Europe/Warsaw": "Krakow, Cracow, Gdansk, Wroclaw, Poznan, Lodz, Katowice",
    "Europe/Prague": "Brno, Praha",
    "Europe/Budapest": "Debrecen",
    "Europe/Bucharest": "Cluj, Cluj-Napoca, Timisoara, Iasi",
    "Europe/Lisbon": "Porto, Lisboa",
    "Europe/Stockholm": "Gothenburg, Goteborg, Malmo",
    "Europe/Oslo": "Bergen, Trondheim",
    "Europe/Copenhagen": "Aarhus, Odense",
    "Europe/Helsinki": "Espoo, Tampere, Turku",
    "Europe/Athens": "Thessaloniki, Piraeus",
    "Europe/Istanbul": "Ankara, Izmir, Antalya, Bursa",
    "Europe/Kyiv": "Kharkiv, Odesa, Odessa, Lviv, Dnipro",
    "Europe/Moscow": "Saint Petersburg, St Petersburg, Kazan, Nizhny Novgorod, Sochi, Rostov",
    "Asia/Yekaterinburg": "Chelyabinsk, Ufa, Perm",
    "Europe/Zagreb": "Dubrovnik",
    # The Americas
    "America/New_York": (
        "New York City, NYC, Boston, Washington, Washington DC, Philadelphia, Miami, Atlanta, Baltimore, Pittsburgh, "
        "Cleveland, Charlotte, Orlando, Tampa, Jacksonville, Raleigh, Richmond, Buffalo, Cincinnati, Florida, Eastern, "
        "Eastern Time, ET, EDT"
    ),
    "America/Chicago": (
        "Houston, Dallas, Austin, San Antonio, Minneapolis, New Orleans, St Louis, Milwaukee, Kansas City, Memphis, "
        "Nashville, Oklahoma City, Omaha, Texas, Central, Central Time, CDT"
    ),
    "America/Denver": "Salt Lake City, Albuquerque, El Paso, Colorado, Mountain, Mountain Time, MDT",
    "America/Phoenix": "Tucson, Arizona",
    "America/Los_Angeles": (
        "San Francisco, Seattle, San Diego, Las Vegas, Sacramento, Oakland, Silicon Valley, California, LA, SF, Pacific "
        "Time, PT, PST, PDT"
    ),
    "Pacific/Honolulu": "Hawaii, Oahu, Maui",
    "America/Anchorage": "Alaska, Fairbanks",
    "America/Toronto": "Ottawa, Quebec, Quebec City, Ontario",
    "America/Edmonton": "Calgary, Alberta",
    "America/Vancouver": "British Columbia",
    "America/Mexico_City": "Guadalajara, Puebla, CDMX",
    "America/Sao_Paulo": "Rio de Janeiro, Rio, Brasilia, Belo Horizonte, Curitiba, Porto Alegre",
    "America/Bogota": "Medellin, Cali, Cartagena, Barranquilla",
    "America/Guayaquil": "Quito",
    "America/Lima": "Cusco, Arequipa",
    "America/Santiago": "Valparaiso",
    "America/Havana": "Cuba",
    # Africa
    "Africa/Lagos": "Abuja, Kano, Ibadan, Port Harcourt",
    "Africa/Johannesburg": "Cape Town, Durban, Pretoria, Soweto",
    "Africa/Cairo": "Alexandria, Giza",
    "Africa/Nairobi": "Mombasa",
    "Africa/Casablanca": "Rabat, Marrakesh, Marrakech, Fez, Tangier",
    "Africa/Accra": "Kumasi",
    "Africa/Dar_es_Salaam": "Dodoma, Zanzibar",
    "Africa/Kampala": "Entebbe",
    # Oceania
    "Australia/Sydney": "Wollongong, New South Wales",
    "Australia/Melbourne": "Geelong",
    "Australia/Brisbane": "Gold Coast, Cairns",
    "Pacific/Auckland": "Wellington, Christchurch",
    "Pacific/Tahiti": "Papeete",
}

# What else countries are called, by their codes.
COUNTRIES = {
    "usa": "US",
    "us": "US",
    "america": "US",
    "united_states_of_america": "US",
    "uk": "GB",
    "great_britain": "GB",
    "south_korea": "KR",
    "korea": "KR",
    "czechia": "CZ",
    "uae": "AE",
    "turkiye": "TR",
    "viet_nam": "VN",
    "burma": "MM",
}

# Letters that stand for a clock in one half of the year, or in several countries: by the zones that may be meant.
ABBREVIATIONS = {
    "CEST": ("Europe/Berlin", "Europe/Paris"),
    "EEST": ("Europe/Athens", "Europe/Kyiv"),
    "WEST": ("Europe/Lisbon",),
    "BST": ("Europe/London",),
    "IST": ("Asia/Kolkata", "Asia/Jerusalem", "Europe/Dublin"),
    "CST": ("America/Chicago", "Asia/Shanghai"),
    "JST": ("Asia/Tokyo",),
    "KST": ("Asia/Seoul",),
    "SGT": ("Asia/Singapore",),
    "HKT": ("Asia/Hong_Kong",),
    "ICT": ("Asia/Bangkok", "Asia/Ho_Chi_Minh"),
    "WIB": ("Asia/Jakarta",),
    "PKT": ("Asia/Karachi",),
    "GST": ("Asia/Dubai",),
    "MSK": ("Europe/Moscow",),
    "TRT": ("Europe/Istanbul",),
    "SAST": ("Africa/Johannesburg",),
    "EAT": ("Africa/Nairobi",),
    "WAT": ("Africa/Lagos",),
    "BRT": ("America/Sao_Paulo",),
    "AKST": ("America/Anchorage",),
    "AKDT": ("America/Anchorage",),
    "AEST": ("Australia/Sydney", "Australia/Brisbane"),
    "AEDT": ("Australia/Sydney", "Australia/Melbourne"),
    "ACST": ("Australia/Adelaide", "Australia/Darwin"),
    "AWST": ("Australia/Perth",),
    "NZST": ("Pacific/Auckland",),
    "NZDT": ("Pacific/Auckland",),
}

# Clocks that are no whole number of hours from UTC all year round, by minutes east of it.
UNEVEN = {
    210: "Asia/Tehran",
    270: "Asia/Kabul",
    330: "Asia/Kolkata",
    345: "Asia/Kathmandu",
    390: "Asia/Yangon",
    525: "Australia/Eucla",
    570: "Australia/Darwin",
    -570: "Pacific/Marquesas",
}
